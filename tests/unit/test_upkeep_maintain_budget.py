"""A budget ends in the middle of a long piece of work on one partition: the run stops after the current file, and
the next one continues there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stratalog import Report
from stratalog.engine.replication import sync
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.partitions.root import format_root
from tests.unit.cluster_harness import LiveCluster
from tests.unit.retention_harness import filled, local_start

SEGMENTS = 5


def rounds(live: LiveCluster, step: str, most: int = 20) -> Iterator[Report]:
    """Runs with an exhausted budget, until one reaches the end of the step."""
    for _ in range(most):
        found = live.driver().maintain(only=step, budget_requests=1).raise_for_failures()
        yield found
        if found.rows[0]["outcome"] == "done":
            return
    pytest.fail(f"{step} never ended")


@pytest.mark.slow
def test_the_uploads_of_a_partition_end_with_the_current_segment_and_continue_at_once(live: LiveCluster) -> None:
    live.tiered(segment_bytes="1")
    live.fill("abcde")
    ends = []
    for found in rounds(live, "tier"):
        ends.append(live.cluster.tier(dry_run=True).rows[0]["remote_end"])
        assert (found.rows[0]["outcome"] == "cut off") == (ends[-1] < SEGMENTS)
    assert ends == [1, 2, 3, 4, 5]
    live.cluster.verify(deep=True).raise_for_failures()


def test_without_a_budget_a_run_does_all_of_it(live: LiveCluster) -> None:
    live.tiered(segment_bytes="1")
    live.fill("abcde")
    found = live.cluster.maintain(only="tier").raise_for_failures()
    assert found.rows[0]["outcome"] == "done"
    assert live.cluster.tier(dry_run=True).rows[0]["remote_end"] == SEGMENTS


def test_a_run_that_is_cut_off_leaves_what_it_has_uploaded_committed(live: LiveCluster) -> None:
    """The budget is checked before each upload, here with one lane: it is exhausted after the second upload."""
    live.tiered(segment_bytes="1")
    live.fill("abcde")
    asked = iter([False, True])
    report = tier(
        live.cluster._ports.metadata,
        live.cluster._ports.storage,
        live.cluster._ports.execution,
        over=lambda: next(asked, True),
    ).raise_for_failures()
    assert (report.totals["uploaded_files"], report.totals["cut_off"], report.totals["next_ms"]) == (2, 1, 0)
    assert report.settled == {}


def test_the_merges_of_a_partition_end_with_the_current_segment(live: LiveCluster) -> None:
    live.topic(segment_bytes="15000")
    rng = random.Random(1)
    values = [[rng.randbytes(16).hex() for _ in range(200)] for _ in range(8)]
    for some in values:
        live.append(some).raise_for_failures()
    planned = live.cluster.merge(dry_run=True).totals["segments"]
    assert isinstance(planned, int)
    assert planned > 2
    made = []
    for found in rounds(live, "merge"):
        made.append(sum("-" in name for name in live.data(live.leader())))
        assert (found.rows[0]["outcome"] == "cut off") == (made[-1] < planned)
    assert made == [*range(1, planned + 1)]
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: [value for some in values for value in some]}


@pytest.mark.slow
def test_the_local_start_moves_as_far_as_remote_segments_were_read(live: LiveCluster) -> None:
    filled(live, "abcde")
    starts = []
    for found in rounds(live, "retain"):
        starts.append([local_start(live, broker) for broker in (1, 2, 3)])
        assert (found.rows[0]["outcome"] == "cut off") == (starts[-1][0] < SEGMENTS - 1)
    assert starts == [[start] * 3 for start in (1, 2, 3, 4)]
    live.cluster.retain().raise_for_failures()
    assert [len(live.data(broker)) for broker in (1, 2, 3)] == [1, 1, 1]
    assert live.read() == {0: [*"abcde"]}
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_follower_that_lacks_much_catches_up_over_several_runs(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The high watermark waits for members that have not caught up."""
    monkeypatch.setattr(sync, "_GROUP_FILES", 2)
    live.topic()
    for value in "abcde":
        live.append([value], acks="leader").raise_for_failures()
    held = []
    for found in rounds(live, "replicate"):
        held.append([len(live.data(follower)) for follower in live.followers()])
        assert live.isr() == {1, 2, 3}
        cut_off = found.rows[0]["outcome"] == "cut off"
        assert live.log(live.leader()).high_watermark == (0 if cut_off else SEGMENTS)
    assert held[:3] == [[2, 2], [4, 4], [5, 5]]
    assert live.read() == {0: [*"abcde"]}


def test_a_broker_that_lost_its_disk_joins_the_isr_when_it_lacks_nothing(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_GROUP_FILES", 1)
    live.topic()
    live.fill("abcde")
    live.wipe(3)
    format_root(live.store(3), "c", 3, live.new_id)
    joined = []
    for _ in rounds(live, "replicate"):
        joined.append((len(live.data(3)), live.isr() == {1, 2, 3}))
    assert joined == [(1, False), (2, False), (3, False), (4, False), (5, True)]
    assert live.data(3) == live.data(1)
