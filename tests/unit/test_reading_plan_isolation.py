"""Plans with transactions (KIP-98's isolation.level): committed records up to the last stable offset, or all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stratalog import FirstAt
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.harness import batch

pytestmark = pytest.mark.slow

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def built(folder: Path) -> LiveCluster:
    """``t``-0: a at 0; b at 1 in a transaction, committed at 2; c at 3 in one, aborted at 4; d at 5."""
    made = LiveCluster(folder)
    made.cluster.topics.alter_configs(
        None,
        {
            "transaction.state.log.num.partitions": "1",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        },
    )
    made.topic(segment_merge_min_files="2")
    made.fill("a")
    with made.cluster.transactions.begin("x") as t:
        t.append_batches("t", {0: [batch(["b"])]})
    t = made.cluster.transactions.begin("x")
    t.append_batches("t", {0: [batch(["c"])]})
    t.abort()
    made.fill("d")
    return made


live, shared = live_and_shared(built)


def values(live: LiveCluster, plan: ReadPlan) -> list[str]:
    return [value for part in plan for _, value in live.records(part)]


def test_markers_are_not_for_readers_and_aborted_records_not_for_readers_of_committed_ones(
    shared: LiveCluster,
) -> None:
    assert values(shared, shared.cluster.plan_read("t", isolation=COMMITTED)) == ["a", "b", "d"]
    assert values(shared, shared.cluster.plan_read("t", isolation=UNCOMMITTED)) == ["a", "b", "c", "d"]
    assert values(shared, shared.cluster.plan_read("t")) == ["a", "b", "c", "d"], "Kafka's default"


def test_readers_of_committed_records_stop_at_the_last_stable_offset(live: LiveCluster) -> None:
    """An open transaction hides them, and later appends of others, too."""
    with live.cluster.transactions.begin("y") as t:
        t.append_batches("t", {0: [batch(["e"])]})
        live.fill("f")
        committed = live.cluster.plan_read("t", isolation=COMMITTED)
        assert (committed.partitions[0].end, values(live, committed)) == (6, ["a", "b", "d"])
        assert values(live, live.cluster.plan_read("t")) == ["a", "b", "c", "d", "e", "f"]
        with pytest.raises(
            OffsetOutOfRangeError, match=r"end 7 is above the high watermark: readers see \[0, 6\)"
        ):
            live.cluster.plan_read("t", end=7, isolation=COMMITTED)
    assert values(live, live.cluster.plan_read("t", isolation=COMMITTED)) == ["a", "b", "d", "e", "f"]
    assert values(live, committed) == ["a", "b", "d"], "it is pinned"


def test_positions_and_times_are_those_that_readers_of_committed_records_see(live: LiveCluster) -> None:
    """KIP-98, "ListOffsetRequest": LATEST is the last stable offset, and a look-up by time finds nothing from
    there on. A read that begins there is empty."""
    live.clock.advance_ms(60_000)  # a time after all markers
    late_ms = live.clock.now_ms()
    late = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=late_ms)
    with live.cluster.transactions.begin("y") as t:
        t.append_batches("t", {0: [batch(["e"])]})
        live.fill("f", at_ms=late_ms)
        expected: dict[OffsetSpec | datetime, tuple[int, int | None]] = {
            OffsetSpec.EARLIEST: (0, 0),
            OffsetSpec.LATEST: (8, 6),
            OffsetSpec.MAX_TIMESTAMP: (7, None),
            late: (7, None),
        }
        for spec, (of_all, of_committed) in expected.items():
            assert live.cluster.offsets("t", spec, UNCOMMITTED) == live.cluster.offsets("t", spec)
            for isolation, offset in ((UNCOMMITTED, of_all), (COMMITTED, of_committed)):
                answer = live.cluster.offsets("t", spec, isolation)[0]
                assert (answer.offset if isinstance(answer, FoundOffset) else None) == offset, (spec, isolation)
        for start in (OffsetSpec.LATEST, FirstAt(late)):
            plan = live.cluster.plan_read("t", start, isolation=COMMITTED)
            assert (plan.partitions[0].start, plan.partitions[0].end) == (6, 6)
    assert live.cluster.offsets("t", OffsetSpec.LATEST, COMMITTED)[0] == FoundOffset(9, None, 1)


def test_merged_segments_say_of_each_record_what_became_of_it_where_there_were_transactions(
    live: LiveCluster,
) -> None:
    """Only files with transactions are filtered by their column ``control``; others are scanned directly."""
    assert not any(part.marked for part in live.cluster.plan_read("t"))
    live.cluster.merge().raise_for_failures()
    (part,) = live.cluster.plan_read("t", isolation=COMMITTED)
    assert part.marked
    live.topic("plain", segment_merge_min_files="2")
    live.fill("abc", "plain")
    live.cluster.merge("plain").raise_for_failures()
    (part,) = live.cluster.plan_read("plain", isolation=COMMITTED)
    assert (part.end, part.marked) == (3, False)


def test_a_near_replica_shows_committed_records_as_far_as_it_knows_their_markers(live: LiveCluster) -> None:
    """The replica holds an append of a transaction, and does not know its abort: from there on the
    leader is read.
    """
    follower = live.followers()[0]
    store = live.store(follower)
    t = live.cluster.transactions.begin("y")
    t.append_batches("t", {0: [batch(["e"])]})
    with pytest.MonkeyPatch.context() as patch:
        create = store.create
        patch.setattr(store, "create", lambda name, data: name.endswith(".hw") or create(name, data))
        t.abort()
        live.fill("f")
    plan = live.cluster.plan_read("t", isolation=COMMITTED, client_rack=chr(96 + follower))
    assert values(live, plan) == ["a", "b", "d", "f"]
    assert {part.broker for part in plan} == {follower, live.leader()}


def test_an_unknown_isolation_is_named(shared: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="unknown isolation 'read_comitted'; did you mean"):
        shared.cluster.plan_read("t", isolation="read_comitted")
    with pytest.raises(InvalidCallError, match="'x': use one of read_uncommitted, read_committed"):
        shared.cluster.plan_read("t", isolation="x")


def test_the_plan_shows_its_isolation(shared: LiveCluster) -> None:
    text = shared.cluster.plan_read("t", isolation=COMMITTED).explain()
    assert "read_committed: up to the last stable offset, without aborted transactions" in text
    assert "committed" not in shared.cluster.plan_read("t").explain()
