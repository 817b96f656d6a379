"""The offset up to which a log equals a consumer's records, by leader epochs (KIP-320)."""

from __future__ import annotations

import pytest

from stratalog.engine.replicas.offsets_for_epoch import divergent_offset, knows_high_watermark
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog, parse


def log(*entries: tuple[int, int], end: int = 20, high_watermark: int = 20) -> ReplicaLog:
    return ReplicaLog(parse("", []), Lineage(entries), (), 0, end, high_watermark, 0, (), (), ())


@pytest.mark.parametrize(
    ("case", "entries", "offset", "epoch", "divergent"),
    [
        ("nothing was read", [(1, 0)], 0, 1, None),
        ("all of the epoch is there", [(1, 0)], 20, 1, None),
        ("the log ends before", [(1, 0)], 21, 1, 20),
        ("the next epoch begins behind it", [(1, 0), (2, 10)], 10, 1, None),
        ("the next epoch begins before it", [(1, 0), (2, 10)], 11, 1, 10),
        ("its epoch is the latest", [(1, 0), (2, 10)], 15, 2, None),
        ("its epoch is lost", [(1, 0), (3, 10)], 15, 2, 10),
        ("its epoch is lost, and lay where the one before goes on", [(1, 5), (3, 10)], 8, 2, 5),
        ("its epoch is before the first", [(5, 10)], 4, 2, None),
        ("its epoch is before the first", [(5, 10)], 12, 2, 10),
        ("an empty log", [], 0, 0, None),
    ],
)
def test_the_divergent_offset_is_where_two_histories_part(
    case: str, entries: list[tuple[int, int]], offset: int, epoch: int, divergent: int | None
) -> None:
    assert divergent_offset(log(*entries), offset, epoch) == divergent


@pytest.mark.parametrize(("high_watermark", "known"), [(9, False), (10, True), (20, True)])
def test_a_leader_knows_the_high_watermark_once_it_has_reached_its_own_epoch(
    high_watermark: int, known: bool
) -> None:
    """KIP-207: before the new leader knows the high watermark, commits under the previous leader may reach
    further.
    """
    taken_over = log((1, 0), (2, 10), high_watermark=high_watermark)
    assert knows_high_watermark(taken_over, 2) is known
    assert knows_high_watermark(log((1, 0), end=10, high_watermark=min(high_watermark, 10)), 2) is known
    assert knows_high_watermark(log(end=0, high_watermark=0), 1)
