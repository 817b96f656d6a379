"""A newly elected leader that does not know the high watermark yet: no answer says that the log ends below
acknowledged records (KIP-207)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster, Committed, FirstAt, FoundOffset, OffsetSpec
from stratalog.engine.reading.plan_read import plan_again
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.partitions.errors import OffsetNotAvailableError, OffsetOutOfRangeError, RetriableError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, codes, rows_of
from tests.unit.stream_harness import source

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """``a`` to ``d`` are acknowledged; the leader knows that for ``a`` to ``c``, at time 1 ms to 3 ms."""
    live = LiveCluster(tmp_path)
    live.topic()
    for number, value in enumerate("abcd"):
        live.append([value], at_ms=number + 1).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 4}).raise_for_failures()
    return live


def elect_unaware(live: LiveCluster) -> None:
    """The high watermark of ``d`` did not reach the next leader (a follower gets a high watermark when a driver
    next reaches it).
    """
    heir = live.followers()[0]
    replica = live.replica(heir)
    latest = max(replica.list().watermarks, key=lambda mark: mark.offset)
    replica.store.delete([replica.path(latest)])
    live.cluster.elect("t", leader=heir).raise_for_failures()
    log = live.log(heir)
    assert (log.high_watermark, log.log_end) == (3, 4)


Door = Callable[[Cluster], object]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "door",
    [
        lambda c: c.offsets("t", "latest"),
        lambda c: c.offsets("t", "latest", "read_committed"),
        lambda c: c.offsets("t", FirstAt("1970-01-01T00:00:00.004")),
        lambda c: c.plan_read("t"),
        lambda c: c.plan_read("t", last=1),
        lambda c: c.plan_read("t", OffsetSpec.LATEST),
        lambda c: c.plan_read("t", None, 4),
        lambda c: c.plan_read("t", None, Committed("g")),
        lambda c: c.plan_read("t", "1970-01-01"),
        lambda c: c.tail("t"),
        lambda c: c.tail("t", last=2),
        lambda c: c.tail("t", start=0, follow=False),
        lambda c: c.groups.reset_offsets("g", "t", to="latest"),
        lambda c: c.groups.reset_offsets("g", "t", to=4),
    ],
)
def test_the_end_is_not_available_until_another_writer_has_found_it_out(live: LiveCluster, door: Door) -> None:
    """LATEST, and everything that depends on it, raises a retriable error."""
    before = live.cluster.offsets("t", "latest")[0]
    elect_unaware(live)
    with (
        live.unchanged(),
        pytest.raises(OffsetNotAvailableError, match=r"t-0: .*recently elected leader.*run replicate") as e,
    ):
        door(live.cluster)
    assert isinstance(e.value, RetriableError)
    live.cluster.replicate().raise_for_failures()
    door(live.cluster)
    after = live.cluster.offsets("t", "latest")[0]
    assert isinstance(before, FoundOffset)
    assert isinstance(after, FoundOffset)
    assert before.offset == after.offset == 4


def test_records_that_are_known_to_be_committed_are_read_all_the_same(live: LiveCluster) -> None:
    elect_unaware(live)
    assert live.read(end=3) == {0: list("abc")}
    assert live.cluster.offsets("t", "earliest")[0] == FoundOffset(0, None, 1)
    assert live.cluster.offsets("t", "1970-01-01T00:00:00.002")[0] == FoundOffset(1, 2000, 1)
    assert live.cluster.fetch("t", 0, 2).next_offset == 3


def test_a_fetch_says_that_the_high_watermark_is_a_lower_bound(live: LiveCluster) -> None:
    before = live.cluster.fetch("t", 0, 3)
    assert before.end_known
    elect_unaware(live)
    after = live.cluster.fetch("t", 0, 3)
    assert (after.records.num_rows, after.high_watermark, after.end_known) == (0, 3, False)
    assert "high watermark at least 3" in repr(after)
    live.cluster.replicate().raise_for_failures()
    assert live.cluster.fetch("t", 0, 3).end_known


def test_a_plan_that_was_made_before_waits_for_it_too(live: LiveCluster) -> None:
    plan: ReadPlan = live.cluster.plan_read("t")
    elect_unaware(live)
    with pytest.raises(OffsetNotAvailableError):
        with_ports(plan_again, ports_of(live.cluster))(plan, ClientMetadata())
    live.append(["e"]).raise_for_failures()
    again = with_ports(plan_again, ports_of(live.cluster))(plan, ClientMetadata())
    assert [(part.start, part.end) for part in again] == [(part.start, part.end) for part in plan]


def test_a_stream_that_begins_or_stops_at_the_end_says_so_and_one_that_runs_continues(live: LiveCluster) -> None:
    running = source(live, "t", startingOffsets="earliest")
    begin = running.initial()
    there = running.latest(begin, None, None)
    elect_unaware(live)
    assert running.latest(there, None, None).partitions == there.partitions, "it does not go back"
    for call in (source(live, "t", startingOffsets="latest").initial, running.stop_at_present_end):
        with pytest.raises(OffsetNotAvailableError):
            call()


def test_a_stream_that_begins_above_what_the_leader_knows_waits_for_it(live: LiveCluster) -> None:
    """The stream behaves like a fetch there; beyond the end of the log there is nothing to wait for."""
    elect_unaware(live)
    with pytest.raises(OffsetNotAvailableError, match=r"t-0: .*recently elected leader.*run replicate"):
        source(live, "t", startingOffsets='{"0": 4}').initial()
    with pytest.raises(OffsetOutOfRangeError, match="t-0: startingOffsets is 5"):
        source(live, "t", startingOffsets='{"0": 5}').initial()
    live.cluster.replicate().raise_for_failures()
    assert source(live, "t", startingOffsets='{"0": 4}').initial().partitions["t", 0].offset == 4


def test_an_unknown_lag_is_a_failure_of_its_partition(live: LiveCluster) -> None:
    elect_unaware(live)
    report = live.cluster.groups.lag("g")
    assert (codes(report), [row["lag"] for row in report.rows]) == ({"OFFSET_NOT_AVAILABLE": 1}, [None])
    live.cluster.replicate().raise_for_failures()
    assert rows_of(live.cluster.groups.lag("g"), "lag") == [(0,)]
