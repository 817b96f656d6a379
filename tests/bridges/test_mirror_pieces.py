"""Pieces of a mirrored partition: the cuts of the read columns for the appends."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest

from stratalog.bridges.mirror.partitions import MirroredPartition
from stratalog.bridges.mirror.rows import batches_of
from stratalog.bridges.mirror.source import SourceBounds, SourceRead, SourceRecord
from tests.bridges.memory_source import batch_of


def test_many_partitions_share_the_memory_of_one_process() -> None:
    part = MirroredPartition(("t", 0), 0, None, SourceBounds(0, 1000, 1000))
    part.share(100_000)
    records = [SourceRecord(offset, None, None, b"x" * 100, (), 0) for offset in range(0, 1000, 2)]
    pieces = []
    for piece in part.pieces(SourceRead(("t", 0), batch_of(records), 1000)):
        pieces.append(piece)
        part.appended(piece)
    assert len(pieces) > 20
    assert [(one.start, one.end) for one in pieces] == list(pairwise([0, *(one.end for one in pieces)]))
    assert (pieces[-1].end, part.mirrored, part.gaps) == (1000, 500, 500)


def test_a_piece_is_of_one_leader_epoch_and_holds_the_gaps_before_the_next() -> None:
    part = MirroredPartition(("t", 0), 0, None, SourceBounds(0, 100, 100))
    epochs = {1: None, 2: 5, 4: 5, 5: None, 7: 6, 8: 6, 20: 9}
    records = [SourceRecord(offset, None, b"k", None, (), epoch) for offset, epoch in epochs.items()]
    records.append(SourceRecord(100, None, b"k", None, (), 9))
    pieces = []
    for piece in part.pieces(SourceRead(("t", 0), batch_of(records), 101)):
        pieces.append((piece.start, piece.end, piece.records, piece.leader_epoch))
        part.appended(piece)
    assert pieces == [(0, 2, 1, 0), (2, 6, 3, 5), (6, 9, 2, 6), (9, 100, 1, 9)], "the last one is of another run"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_columns_are_cut_where_single_records_would_be(seed: int) -> None:
    """For any length of reads, gaps and pieces, each record is in one piece, and no piece is too large by more
    than one record."""
    chance = random.Random(seed)
    part = MirroredPartition(("t", 0), 0, 3, SourceBounds(0, 10_000, 10_000), most_bytes=3000)
    offsets = sorted(chance.sample(range(10_000), 4000))
    headers = [("h", b"x" * 10), ("i", None)]
    records = [
        SourceRecord(offset, offset, b"key", b"v" * chance.randrange(300), headers * chance.randrange(3), 3)
        for offset in offsets
    ]
    largest = max(record.size_bytes for record in records)
    found: list[tuple[int, int, bytes]] = []
    ends, sizes, at = [0], 0, 0
    while at < len(records):
        taken = records[at : at + chance.randrange(1, 200)]
        at += len(taken)
        end = 10_000 if at == len(records) else taken[-1].offset + 1
        for piece in part.pieces(SourceRead(("t", 0), batch_of(taken), end)):
            assert piece.start == ends[-1]
            assert piece.size_bytes <= 3000 + largest
            rows = pa.Table.from_batches(list(batches_of(piece.batches, piece.start, piece.end)))
            assert rows.num_rows == piece.end - piece.start
            held = [(piece.start + number, row) for number, row in enumerate(rows.to_pylist())]
            found += [(offset, len(r["headers"] or ()), r["value"]) for offset, r in held if r["control"] is None]
            ends.append(piece.end)
            sizes += piece.size_bytes
            part.appended(piece)
    assert found == [(record.offset, len(record.headers), record.value) for record in records]
    assert (ends[-1], sizes, part.gaps) == (10_000, sum(record.size_bytes for record in records), 6000)
