"""Admission: limits are kept, every partition progresses, and the work is shared fairly."""

from __future__ import annotations

import random

import pytest

from stratalog.engine.reading.admission import Backlog, Extent, admit, fair_shares


def backlogs(*rows: int) -> dict[int, Backlog]:
    return {partition: Backlog(0, count) for partition, count in enumerate(rows)}


@pytest.mark.parametrize(
    ("wanted", "limit", "shares"),
    [
        ((5, 5), 100, (5, 5)),
        ((10, 10), 10, (5, 5)),
        ((1, 100), 10, (1, 9)),  # shares that are not used go to the others
        ((100, 1), 10, (9, 1)),
        ((0, 7, 7), 3, (0, 1, 2)),
        ((2, 3, 100), 9, (2, 3, 4)),
        ((0, 0), 5, (0, 0)),
    ],
)
def test_a_limit_is_shared_out_evenly(wanted: tuple[int, ...], limit: int, shares: tuple[int, ...]) -> None:
    found = fair_shares(dict(enumerate(wanted)), limit)
    assert tuple(found[key] for key in sorted(found)) == shares


def test_a_limit_below_the_number_of_partitions_lets_them_take_turns() -> None:
    """The position of a turn is the sum of all positions: it advances with the records read, also across a
    restart.
    """
    position = dict.fromkeys(range(5), 0)
    for _ in range(10):
        ends = admit({p: Backlog(at, 100) for p, at in position.items()}, max_rows=2)
        assert sum(ends.values()) == sum(position.values()) + 2
        position = ends
    assert position == dict.fromkeys(range(5), 4)


@pytest.mark.parametrize("seed", range(200))
def test_a_limit_of_rows_is_never_exceeded_and_all_is_read_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    ends = {p: rng.choice([0, 1, 5, rng.randrange(200)]) for p in range(rng.randrange(1, 9))}
    limit, position = rng.randrange(1, 30), dict.fromkeys(ends, 0)
    for _ in range(1000):
        following = admit({p: Backlog(position[p], ends[p]) for p in ends}, max_rows=limit)
        taken = {p: following[p] - position[p] for p in ends}
        assert all(position[p] <= following[p] <= ends[p] for p in ends)
        assert sum(taken.values()) == min(limit, sum(ends.values()) - sum(position.values()))
        position = following
        if position == ends:
            return
    raise AssertionError("it never ended")


def test_without_a_limit_everything_is_read() -> None:
    assert admit(backlogs(3, 0, 8)) == {0: 3, 1: 0, 2: 8}


def test_a_limit_of_bytes_uses_the_sizes_of_the_files() -> None:
    small = Backlog(0, 100, [Extent(0, 100, 1_000)])
    large = Backlog(0, 100, [Extent(0, 50, 50_000), Extent(50, 100, 50_000)])
    assert admit({0: small, 1: large}, max_bytes=11_000) == {0: 100, 1: 10}


def test_a_batch_that_begins_in_the_middle_of_a_file_counts_only_the_rest_of_it() -> None:
    backlog = Backlog(90, 200, [Extent(0, 100, 10_000), Extent(100, 200, 10_000)])
    assert backlog.bytes_until(200) == 11_000
    assert admit({0: backlog}, max_bytes=2_000) == {0: 110}


def test_a_record_that_is_larger_than_the_limit_is_read_all_the_same() -> None:
    huge = Backlog(7, 9, [Extent(7, 9, 2_000_000)])
    assert admit({0: huge}, max_bytes=10) == {0: 8}


def test_records_whose_size_is_not_known_are_not_left_out() -> None:
    assert admit({0: Backlog(0, 10)}, max_bytes=5) == {0: 10}


def test_both_limits_hold_at_once() -> None:
    backlog = {0: Backlog(0, 100, [Extent(0, 100, 10_000)])}
    assert admit(backlog, max_rows=20, max_bytes=100_000) == {0: 20}
    assert admit(backlog, max_rows=20, max_bytes=1_000) == {0: 10}


@pytest.mark.parametrize("seed", range(200))
def test_a_limit_of_bytes_is_kept_except_for_one_record_per_partition(seed: int) -> None:
    rng = random.Random(seed)
    logs: dict[int, list[Extent]] = {}
    for partition in range(rng.randrange(1, 6)):
        bounds = sorted(rng.sample(range(1, 500), rng.randrange(1, 6)))
        starts = [0, *bounds[:-1]]
        logs[partition] = [
            Extent(s, e, (e - s) * rng.randrange(1, 300)) for s, e in zip(starts, bounds, strict=True)
        ]
    limit, position = rng.randrange(1, 20_000), dict.fromkeys(logs, 0)
    for _ in range(5000):
        now = {p: Backlog(position[p], extents[-1].end, extents) for p, extents in logs.items()}
        ends = admit(now, max_bytes=limit)
        # Sizes are rounded down, by less than a byte per extent.
        assert sum(now[p].bytes_until(max(position[p], ends[p] - 1)) for p in logs) <= limit
        assert ends != position or all(position[p] == logs[p][-1].end for p in logs)
        if ends == position:
            return
        position = ends
    raise AssertionError("it never ended")
