"""The last n records of a partition are n records that the reader gets: markers and aborted records do
not count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.records.transact import Transaction
from stratalog.partitions.store.protocol import StoreCounts
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
SEEN = {
    COMMITTED: ["a", "A", "a-", "b-", "c", "C", "c-", "d-"],
    UNCOMMITTED: ["a", "A", "a-", "b", "B", "b-", "c", "C", "c-", "d", "D", "d-", "open", "behind"],
}


def put(transaction: Transaction, value: str) -> None:
    """One record of a transaction."""
    transaction.append_batches("t", {0: [batch([value])]}).raise_for_failures()


@pytest.fixture(scope="module", params=["appends", "merged", "remote"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """Committed and aborted transactions in turn, other records between them, and an open one."""
    live = LiveCluster(tmp_path_factory.mktemp("last"))
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.tiered()
    for value, commit in (("a", True), ("b", False), ("c", True), ("d", False)):
        t = live.cluster.transactions.begin("x")
        put(t, value)
        put(t, value.upper())
        live.fill([f"{value}-"])
        (t.commit if commit else t.abort)()
    put(live.cluster.transactions.begin("y"), "open")
    live.fill(["behind"])
    if request.param == "merged":
        live.cluster.merge("t").raise_for_failures()
    if request.param == "remote":
        live.tier_and_drop("t")
    return live


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
def test_the_requested_number_of_records_is_found(live: LiveCluster, isolation: str) -> None:
    seen = SEEN[isolation]
    for last in range(len(seen) + 2):
        tail = live.cluster.tail("t", last=last, follow=False, isolation=isolation)
        found = [value.decode() for one in tail for value in one.column("value").to_pylist()]
        assert found == (seen[-last:] if last else []), last
    assert len(found) == len(seen)
    whole = live.cluster.plan_read("t", isolation=isolation).partitions[0]
    for last in range(1, len(seen) + 2):
        (plan,) = live.cluster.plan_read("t", last=last, isolation=isolation).partitions
        tail = live.cluster.tail("t", last=last, isolation=isolation)
        assert (plan.start, plan.end) == (tail.positions["t", 0].offset, whole.end)


@pytest.mark.slow
def test_below_an_end_they_are_counted_from_there(live: LiveCluster) -> None:
    """Offsets: a A a- marker b B b- marker; for readers of committed records, the two before offset 8 are a- and
    b-.
    """
    (plan,) = live.cluster.plan_read("t", end=8, last=2, isolation=COMMITTED).partitions
    assert (plan.start, plan.end) == (2, 8)
    (plan,) = live.cluster.plan_read("t", end=8, last=2).partitions
    assert (plan.start, plan.end) == (5, 8)


def test_the_remote_tier_is_not_asked_for_records_that_the_leader_surely_holds(tmp_path: Path) -> None:
    """If markers leave the answer open, the files are read; nothing is guessed."""
    live = LiveCluster(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.tiered(**{"segment.bytes": "1"})
    live.fill("abc")
    live.tier_and_drop("t")
    live.fill("de")
    with live.cluster.transactions.begin("x") as t:
        put(t, "f")
    live.cluster.replicate("t").raise_for_failures()
    remote = ports_of(live.cluster).storage.remote
    assert remote is not None

    def start(last: int) -> tuple[int, StoreCounts]:
        before = remote.counts.snapshot()
        (plan,) = live.driver().plan_read("t", last=last, isolation=COMMITTED).partitions
        return plan.start, remote.counts - before

    assert start(3) == (3, StoreCounts())
    assert start(4)[0] == 2
