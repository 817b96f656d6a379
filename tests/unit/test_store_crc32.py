"""The CRC-32 of bytes, computed in pieces and out of order, equals that of the bytes in order."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise

from isal import isal_zlib

from stratalog.partitions.store.crc32 import PiecewiseCrc32


def test_two_runs_of_any_length_combine_to_the_checksum_of_both() -> None:
    dice = random.Random(1)
    for _ in range(200):
        first, second = dice.randbytes(dice.randrange(300)), dice.randbytes(dice.randrange(300))
        whole = isal_zlib.crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second))
        assert whole == zlib.crc32(first + second)


def test_pieces_in_any_order_come_to_the_whole_and_one_sent_again_counts_once() -> None:
    dice = random.Random(2)
    for _ in range(50):
        data = dice.randbytes(dice.randrange(5_000))
        cuts = sorted({0, len(data), *(dice.randrange(len(data) + 1) for _ in range(6))})
        pieces = [(index, data[a:b]) for index, (a, b) in enumerate(pairwise(cuts))]
        passed = PiecewiseCrc32()
        for index, piece in dice.sample([*pieces, *pieces[:2]], len(pieces) + len(pieces[:2])):
            passed.add(index, zlib.crc32(piece), len(piece))
        assert (passed.value, passed.size_bytes) == (zlib.crc32(data), len(data))
