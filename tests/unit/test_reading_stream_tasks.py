"""A batch is divided among tasks: every record once, in tasks of similar size."""

from __future__ import annotations

import random

import pytest

from stratalog.engine.reading.stream_tasks import (
    LEAST_TASK_BYTES,
    MOST_TASK_BYTES,
    Part,
    pack,
    part,
    split,
    task_bytes,
)
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject

STORE = MemoryStore("memory://b1")


def piece(start: int, end: int, *, base: int = 0, until: int | None = None, size: int = 1000) -> FileSlice:
    return FileSlice(STORE, DataFile(DataName(base, until, 1), StoredObject("file", size, 0, "")), start, end)


def test_a_part_of_a_file_counts_its_share_of_the_bytes() -> None:
    assert part(3, piece(25, 50, until=100)) == Part(3, piece(25, 50, until=100), 250)
    assert part(3, piece(0, 50)).size_bytes == 1000  # an append ends where the next one begins


@pytest.mark.parametrize("seed", range(100))
def test_a_large_part_is_cut_between_row_groups_and_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    rows, base = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 12))], rng.randrange(100)
    ends = [base + sum(rows[: number + 1]) for number in range(len(rows))]
    start = rng.randrange(base, ends[-1])
    end = rng.randrange(start, ends[-1]) + 1
    whole = Part(0, piece(start, end, base=base, until=ends[-1]), 1000)
    parts = split(whole, rng.randrange(1, 1200), lambda _: ends)
    assert [one.piece.start for one in parts] == [start, *(one.piece.end for one in parts[:-1])]
    assert parts[-1].piece.end == end
    assert {one.piece.end for one in parts[:-1]} <= set(ends)
    assert all(one.piece.start < one.piece.end for one in parts)


def test_parts_are_as_large_as_they_may_be() -> None:
    whole = Part(0, piece(0, 100, until=100), 1000)
    cut = split(whole, 400, lambda _: range(10, 101, 10))
    assert [(one.piece.start, one.piece.end) for one in cut] == [(0, 40), (40, 80), (80, 100)]
    assert [one.size_bytes for one in cut] == [400, 400, 200]


def test_the_footer_of_a_small_file_is_not_asked_for() -> None:
    whole = Part(0, piece(0, 100, until=100), 1000)
    assert split(whole, 1000, lambda _: pytest.fail("the footer was read")) == [whole]


def test_small_parts_share_a_task_and_a_large_one_has_its_own() -> None:
    parts = [Part(0, piece(0, 1), size) for size in (3, 3, 3, 50, 1)]
    assert [[one.size_bytes for one in task] for task in pack(parts, 6)] == [[3, 3], [3], [50], [1]]
    assert pack([], 6) == []


@pytest.mark.parametrize(
    ("total", "min_partitions", "wanted"),
    [
        (1_000, None, LEAST_TASK_BYTES),
        (1 << 32, None, 64 * 1024 * 1024),
        (1 << 50, None, MOST_TASK_BYTES),
        (1_000, 10, 100),
        (1 << 50, 10, MOST_TASK_BYTES),
        (5, 10, 1),
    ],
)
def test_tasks_are_neither_too_small_nor_too_large_nor_too_few(
    total: int, min_partitions: int | None, wanted: int
) -> None:
    assert task_bytes(total, min_partitions) == wanted
