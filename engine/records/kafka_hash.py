"""Hashes of a key's bytes by Kafka's clients. Pure.

murmur2  of Java's, ``org.apache.kafka.common.utils.Utils.murmur2``; of 32 bits
crc32    librdkafka's default, that of zlib
"""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import isal_zlib

_SEED, _FACTOR = 0x9747B28C, 0x5BD1E995
_MASK = 0xFFFFFFFF
_FEW = 32
"""So few keys are hashed one by one: an operation of numpy costs more than the words of all of them."""

_Words = npt.NDArray[np.uint32]


def murmur2_of(keys: pa.Array) -> npt.NDArray[np.int32]:
    """The hash of each of the keys, which are BINARY; that of a null means nothing."""
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    sizes = np.diff(starts)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    with np.errstate(over="ignore"):
        found = np.uint32(_SEED) ^ sizes.astype(np.uint32)
        _mix_words(found, data, starts[:-1], sizes // 4)
        tails = starts[:-1] + sizes // 4 * 4
        for byte in (2, 1, 0):
            here = np.flatnonzero(sizes % 4 > byte)
            found[here] ^= data[tails[here] + byte].astype(np.uint32) << np.uint32(8 * byte)
        found[here] *= np.uint32(_FACTOR)  # those with a tail of any length
        found ^= found >> np.uint32(13)
        found *= np.uint32(_FACTOR)
        found ^= found >> np.uint32(15)
    return found.view(np.int32)


def crc32_of(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """As ``murmur2_of``."""
    at = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].tolist()
    data = memoryview(keys.buffers()[2] or b"")
    return np.fromiter((isal_zlib.crc32(data[start:end]) for start, end in pairwise(at)), np.uint32, len(keys))


def _mix_words(
    found: _Words, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], words: npt.NDArray[np.int64]
) -> None:
    """Mix the whole words of four bytes of each key, little-endian, into its state, word by word of all keys."""
    here = np.flatnonzero(words)
    number = 0
    while len(here) >= _FEW:
        at = starts[here] + 4 * number
        word = np.zeros(len(here), np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        word *= np.uint32(_FACTOR)
        word ^= word >> np.uint32(24)
        word *= np.uint32(_FACTOR)
        found[here] = found[here] * np.uint32(_FACTOR) ^ word
        number += 1
        here = here[words[here] > number]
    for row in here.tolist():
        start, end = int(starts[row]) + 4 * number, int(starts[row]) + 4 * int(words[row])
        state = int(found[row])
        for (word_of_row,) in struct.iter_unpack("<I", data[start:end].tobytes()):
            mixed = word_of_row * _FACTOR & _MASK
            mixed = (mixed ^ mixed >> 24) * _FACTOR & _MASK
            state = state * _FACTOR & _MASK ^ mixed
        found[row] = state
