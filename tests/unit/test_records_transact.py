"""Transactions of a producer: several partitions and topics, and consumed offsets, all or nothing (KIP-98)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.partition_commands import AlterPartition
from stratalog.engine.records.transact import MOST_AT_ONCE
from stratalog.engine.replicas.in_sync import without
from stratalog.engine.state.transaction_state import State
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    StorageError,
    TransactionalIdNotFoundError,
    UnstableOffsetCommitError,
)
from stratalog.partitions.isolation import Isolation
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.seen import seen
from tests.unit.transact_harness import COMMITTED, EVERYTHING, NOTHING, UNCOMMITTED, VALUES, Ledger, put


def _fail(_: None) -> None:
    raise ZeroDivisionError


@pytest.fixture
def live(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path).begin()


# ------------------------------------------------------------------------------- all or nothing


def test_a_transaction_is_seen_when_it_is_committed_and_not_before(live: Ledger) -> None:
    with live.cluster.transactions.begin("x") as t:
        put(t, VALUES)
        assert (live.seen(), live.seen(UNCOMMITTED)) == (NOTHING, EVERYTHING)
    assert live.seen() == EVERYTHING
    assert t.report is not None
    assert (t.report.ok, t.report.totals["outcome"], t.report.totals["records"]) == (True, "committed", 3)
    assert t.report.totals["markers"] == 3
    assert live.state() == State.COMPLETE_COMMIT


def test_an_exception_aborts_and_continues(live: Ledger) -> None:
    t = live.cluster.transactions.begin("x")
    with pytest.raises(ZeroDivisionError), t:
        _fail(put(t, VALUES))
    assert live.seen() == NOTHING
    assert t.report is not None
    assert t.report.totals["outcome"] == "aborted"
    assert live.state() == State.COMPLETE_ABORT


def test_transactions_of_one_id_follow_each_other(live: Ledger) -> None:
    for value in "abc":
        with live.cluster.transactions.begin("x") as t:
            put(t, {"t-0": value, "u-0": value})
            put(t, {"t-0": value.upper()})
    assert live.seen() == {"t-0": ["a", "A", "b", "B", "c", "C"], "t-1": [], "u-0": ["a", "b", "c"]}


def test_other_appends_continue_and_do_not_wait(live: Ledger) -> None:
    """Records after an open transaction are visible once it is decided (KIP-98, last stable offset)."""
    with live.cluster.transactions.begin("x") as t:
        put(t, {"t-0": "a"})
        live.append(["n"]).raise_for_failures()
        assert (live.seen()["t-0"], live.seen(UNCOMMITTED)["t-0"]) == ([], ["a", "n"])
    assert live.seen()["t-0"] == ["a", "n"]


def test_a_transaction_of_nothing_leaves_nothing(live: Ledger) -> None:
    with live.cluster.transactions.begin("x") as t:
        pass
    assert t.report is not None
    assert (t.report.totals["outcome"], t.report.rows) == ("empty", [])
    assert live.state() == State.EMPTY


@pytest.mark.slow
def test_merges_tiering_and_retention_do_not_change_what_is_seen(tmp_path: Path) -> None:
    """Tiered records are decided, so ``control IS NULL`` gives the committed ones, in any engine."""
    live = Ledger(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.tiered(segment_bytes="1")
    for number, commit in enumerate((True, False, True)):
        t = live.cluster.transactions.begin("x")
        put(t, {"t-0": f"v{number}"})
        live.append([f"n{number}"])
        (t.commit if commit else t.abort)()
    left_open = live.cluster.transactions.begin("y")
    put(left_open, {"t-0": "open"})
    live.append(["last"])
    expected = ["v0", "n0", "n1", "v2", "n2"]
    replica = live.replica(live.leader())
    assert seen(replica) == expected
    live.cluster.tier("t").raise_for_failures()
    remote = pa.concat_tables(
        pa.parquet.read_table(path, columns=["value", "control"])
        for path in sorted((live.remote).rglob("0/*.parquet"))
    )
    committed = [row["value"].decode() for row in remote.to_pylist() if row["control"] is None]
    assert (committed, remote.num_rows) == (expected, 9)
    live.cluster.merge("t").raise_for_failures()
    assert seen(replica) == expected
    live.cluster.verify(deep=True).raise_for_failures()
    left_open.commit()
    assert seen(replica) == [*expected, "open", "last"]


def fetched(live: LiveCluster, isolation: Isolation, max_bytes: int) -> tuple[list[str], int]:
    """The records that a consumer gets of ``t-0`` from the first offset on, and its position afterwards."""
    values: list[str] = []
    offset = live.replicas().view.log_start_offset
    while True:
        found = live.cluster.fetch("t", 0, offset, max_bytes=max_bytes, isolation=isolation)
        if found.next_offset == offset:
            return values, offset
        offset = found.next_offset
        values += [value.decode() for value in found.records.column("value").to_pylist()]


@pytest.mark.parametrize("max_bytes", [1, pytest.param(10**6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["appends", "merged", "remote"])
def test_small_reads_by_isolation_level(tmp_path: Path, where: str, max_bytes: int) -> None:
    """KIP-98, "Fetch": no markers; hidden records cause no gaps in the answer."""
    live = Ledger(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.tiered()
    for value, commit in (("a", True), ("b", False), ("c", True), ("d", False)):
        t = live.cluster.transactions.begin("x")
        put(t, {"t-0": value})
        put(t, {"t-0": value.upper()})
        live.append([f"{value}-"]).raise_for_failures()
        (t.commit if commit else t.abort)()
    open_still = live.cluster.transactions.begin("y")
    put(open_still, {"t-0": "open"})
    live.append(["behind"]).raise_for_failures()
    if where == "merged":
        live.cluster.merge("t").raise_for_failures()
    if where == "remote":
        live.tier_and_drop("t")
    assert fetched(live, COMMITTED, max_bytes) == (["a", "A", "a-", "b-", "c", "C", "c-", "d-"], 16)
    everything = [f"{v}{end}" for v in "abcd" for end in ("", "^", "-")]
    expected = [v[0].upper() if v.endswith("^") else v for v in everything]
    assert fetched(live, UNCOMMITTED, max_bytes) == ([*expected, "open", "behind"], 18)
    with pytest.raises(InvalidCallError, match="did you mean 'read_committed'"):
        live.cluster.fetch("t", 0, 0, isolation="committed")


# ------------------------------------------------------------------------- offsets consumed with it


def test_offsets_are_committed_with_the_transaction(live: Ledger) -> None:
    """KIP-98, "TxnOffsetCommitRequest"; KIP-447, UNSTABLE_OFFSET_COMMIT."""
    live.append(["in"], "u").raise_for_failures()
    with live.cluster.transactions.begin("x") as t:
        put(t, {"t-0": "out"})
        t.commit_offsets("g", {("u", 0): 1})
        assert live.driver().groups.committed("g") == {}
        with pytest.raises(UnstableOffsetCommitError, match="u-0"):
            live.driver().groups.committed("g", require_stable=True)
        assert live.driver().groups.committed("g", "t", require_stable=True) == {}
    committed = live.driver().groups.committed("g", require_stable=True)
    assert committed["u", 0].offset == 1
    assert t.report is not None
    assert t.report.totals["offsets"] == 1


def test_offsets_of_an_aborted_transaction_are_as_before(live: Ledger) -> None:
    live.append(["in", "in"], "u").raise_for_failures()
    live.cluster.groups.commit("g", {("u", 0): 1})
    t = live.cluster.transactions.begin("x")
    with pytest.raises(ZeroDivisionError), t:
        _fail(t.commit_offsets("g", {("u", 0): 2}))
    assert live.driver().groups.committed("g", require_stable=True)["u", 0].offset == 1


@pytest.mark.parametrize(
    ("delete", "left"),
    [
        (lambda cluster: cluster.groups.delete("g"), {}),
        (lambda cluster: cluster.groups.delete_offsets("g", "u"), {("t", 0): 0, ("t", 1): 0}),
        (lambda cluster: cluster.groups.delete_offsets("g", "t"), {("u", 0): 2}),
    ],
)
def test_offsets_that_are_deleted_do_not_come_back_with_a_transaction(
    delete: Callable[[Cluster], Report], left: dict[tuple[str, int], int], live: Ledger
) -> None:
    """Kafka's coordinator deletes the pending offsets, too; those of other topics and groups stay."""
    live.append(["in", "in"], "u").raise_for_failures()
    for group in ("g", "other"):
        live.cluster.groups.commit(group, {("u", 0): 1, ("t", 0): 0})
    with live.cluster.transactions.begin("x") as t:
        t.commit_offsets("g", {("u", 0): 2, ("t", 1): 0})
        t.commit_offsets("other", {("u", 0): 2})
        delete(live.driver()).raise_for_failures()
    assert {key: one.offset for key, one in live.driver().groups.committed("g").items()} == left
    assert live.driver().groups.committed("other")["u", 0].offset == 2


# ----------------------------------------------------------------------- partitions, and who goes on


def test_only_partitions_that_were_written_to_get_a_marker(live: Ledger) -> None:
    """All partitions of a small topic join the transaction with the first append to one of them; the decision at
    its end leaves out the unused ones.
    """
    t = live.cluster.transactions.begin("x")
    put(t, {"t-0": "a"})
    assert [row["partition"] for row in live.cluster.transactions.describe("x").rows] == [0, 1]
    put(t, {"u-0": "c"})
    report = t.commit()
    markers = [(row["topic"], row["partition"]) for row in report.rows if row["kind"] == "marker"]
    assert markers == [("t", 0), ("u", 0)]
    assert live.log(live.leader("t", 1), "t", 1).log_end == 0
    assert live.seen() == {"t-0": ["a"], "t-1": [], "u-0": ["c"]}


def test_an_abort_by_another_driver_fences_the_partitions_that_were_not_written_to(live: Ledger) -> None:
    """Only the producer knows which partitions these are, or whether an append to one is in flight."""
    t = live.cluster.transactions.begin("x")
    put(t, {"t-0": "a"})
    aborted = live.driver().transactions.abort("x").raise_for_failures()
    assert sorted((row["topic"], row["partition"]) for row in aborted.rows) == [("t", 0), ("t", 1)]
    with pytest.raises(ProducerFencedError):
        put(t, {"t-1": "late"})
    assert live.seen() == NOTHING


def test_a_partition_of_a_large_topic_joins_the_transaction_when_it_is_written_to(live: Ledger) -> None:
    live.topic("large", partitions=MOST_AT_ONCE + 1)
    with live.cluster.transactions.begin("x") as t:
        for partition in (3, 5):
            put(t, {f"large-{partition}": "a"})
        found = live.driver().transactions.describe("x").rows
    assert [(row["partition"], row["first_offset"]) for row in found] == [(3, 0), (5, 0)]


def epochs_of(*drivers: Cluster) -> list[int]:
    """The epochs of the transactions of these drivers, one after the other."""
    found = []
    for driver in drivers:
        with driver.transactions.begin("x") as t:
            put(t, {"t-0": "a"})
        found.append(t.producer_epoch)
    return found


@pytest.mark.slow
def test_a_driver_continues_with_the_epoch_that_its_last_transaction_left(live: Ledger) -> None:
    """KIP-890; another producer that takes over the id raises the epoch once more, and so does the first one when
    it returns.
    """
    one, other = live.driver(), live.driver()
    assert epochs_of(one, one, other, other, one) == [0, 1, 3, 4, 6]
    assert live.seen()["t-0"] == ["a"] * 5
    t = one.transactions.begin("x")
    put(t, {"t-0": "no"})
    t.abort()
    with one.transactions.begin("x"):
        pass  # nothing
    assert epochs_of(one) == [8]
    assert epochs_of(live.driver()) == [10]
    assert live.seen()["t-0"] == ["a"] * 7


@pytest.mark.slow
def test_a_transaction_fences_an_open_one_of_its_own_driver(live: Ledger) -> None:
    """This is so even if neither has written yet, and if both begin after a finished transaction."""
    assert epochs_of(live.cluster) == [0]
    first, second = (live.cluster.transactions.begin("x") for _ in range(2))
    with pytest.raises(ProducerFencedError):
        put(first, {"t-0": "zombie"})
    put(second, {"t-0": "b"})
    second.commit()
    assert live.seen()["t-0"] == ["a", "b"]


def test_another_timeout_is_one_that_the_coordinator_knows(live: Ledger) -> None:
    assert epochs_of(live.cluster) == [0]
    t = live.cluster.transactions.begin("x", timeout_ms=5000)
    put(t, {"t-0": "b"})
    live.clock.sleep(6)
    live.driver().replicate().raise_for_failures()
    with pytest.raises(ProducerFencedError):
        t.commit()
    assert live.seen()["t-0"] == ["a"]


# -------------------------------------------------------------------------------- fencing, time-out


def test_a_second_producer_of_the_id_fences_the_first(live: Ledger) -> None:
    """KIP-98: its open transaction is aborted; its appends and its commit are refused."""
    first = live.cluster.transactions.begin("x")
    put(first, {"t-0": "old"})
    with live.driver().transactions.begin("x") as second:
        put(second, {"t-0": "new", "u-0": "new"})
        with pytest.raises(ProducerFencedError, match="newer producer"):
            put(first, {"t-0": "zombie"})
        with pytest.raises(ProducerFencedError):
            put(first, {"u-0": "zombie"})
    with pytest.raises(ProducerFencedError):
        first.commit()
    assert live.seen() == {"t-0": ["new"], "t-1": [], "u-0": ["new"]}
    assert live.seen(UNCOMMITTED)["t-0"] == ["old", "new"]


def test_a_transaction_that_reaches_its_timeout_is_aborted_by_any_driver_that_looks(live: Ledger) -> None:
    t = live.cluster.transactions.begin("x", timeout_ms=5000)
    put(t, VALUES)
    live.clock.sleep(4.999)
    assert live.driver().transactions.finish().rows == []
    live.clock.sleep(0.001)
    (row,) = live.driver().transactions.finish().rows
    assert (row["was"], row["state"]) == (State.ONGOING, State.COMPLETE_ABORT)
    with pytest.raises(ProducerFencedError):
        t.commit()
    assert live.seen() == NOTHING
    assert live.log(live.leader()).log_end == 2


def test_replicate_aborts_a_transaction_that_was_left_open(live: Ledger) -> None:
    t = live.cluster.transactions.begin("x", timeout_ms=5000)
    put(t, VALUES)
    live.append(["behind"])
    live.clock.sleep(5)
    report = live.driver().replicate().raise_for_failures()
    assert [note for note in report.notes if "'x' was Ongoing, is CompleteAbort" in note]
    assert live.seen()["t-0"] == ["behind"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 10**9])
def test_a_timeout_has_its_bounds(live: Ledger, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeoutError):
        live.cluster.transactions.begin("x", timeout_ms=timeout_ms)


# ------------------------------------------------------------------------- what operators look at


def test_transactions_are_listed_and_described(live: Ledger) -> None:
    live.append(["first"]).raise_for_failures()
    t = live.cluster.transactions.begin("x", timeout_ms=7000)
    put(t, VALUES)
    (row,) = live.driver().transactions.list().rows
    assert (row["transactional_id"], row["state"], row["partitions"], row["timeout_ms"]) == (
        "x",
        "Ongoing",
        3,
        7000,
    )
    found = live.driver().transactions.describe("x")
    assert [(r["topic"], r["partition"], r["first_offset"]) for r in found.rows] == [
        ("t", 0, 1),
        ("t", 1, 0),
        ("u", 0, 0),
    ]
    with pytest.raises(TransactionalIdNotFoundError, match="'y' does not exist"):
        live.driver().transactions.describe("y")
    t.abort()


def test_an_operator_aborts_what_is_open(live: Ledger) -> None:
    t = live.cluster.transactions.begin("x")
    put(t, VALUES)
    with live.unchanged():
        assert len(live.driver().transactions.abort("x", dry_run=True).rows) == 3
    assert live.driver().transactions.abort("x").raise_for_failures().totals["markers"] == 3
    with pytest.raises(ProducerFencedError):
        put(t, {"t-0": "zombie"})
    with pytest.raises(InvalidTxnStateError, match="nothing to abort"):
        live.driver().transactions.abort("x")
    with pytest.raises(TransactionalIdNotFoundError):
        live.driver().transactions.abort("y")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.slow
def test_a_transaction_hangs_where_an_unclean_election_has_lost_its_marker(tmp_path: Path, commit: bool) -> None:
    """KIP-664: readers would wait forever. The transaction ends as it was decided."""
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.topic("t", copies=2, unclean_leader_election_enable="true")
    live.topic("u", copies=2)
    t = live.cluster.transactions.begin("x")
    put(t, {"t-0": "a", "u-0": "c"})
    leader, follower = live.leader(), live.followers()[0]
    assert live.driver().transactions.find_hanging().rows == []
    store, folder = live.store(follower), live.replica(follower).folder
    before = {stored.name for stored in store.list(folder)}
    (t.commit if commit else t.abort)()
    # The follower never got the marker, and the leader is lost: only an unclean election resolves this.
    ports_of(live.cluster).metadata.submit(AlterPartition((without(live.replicas().view, [follower]),)))
    store.delete([stored.name for stored in store.list(folder) if stored.name not in before])
    live.cluster.brokers.fence(leader, force=True)
    live.cluster.elect("t", unclean=True).raise_for_failures()
    assert live.leader() == follower
    assert seen(live.replica(follower)) == []
    (row,) = live.driver().transactions.find_hanging().rows
    assert (row["topic"], row["transactional_id"], row["first_offset"]) == ("t", "x", 0)
    looks = itertools.count(1)

    def refuse_the_second_look(uri: str, what: str, name: str) -> None:
        if (uri, what, name) == (store.uri, "list", folder) and next(looks) == 2:
            raise StorageError("no answer")

    faults.before = refuse_the_second_look
    report = live.driver().transactions.find_hanging()
    assert (report.rows, [failure.item for failure in report.failures]) == ([], ["t-0"]), "it may still hang"
    faults.none()
    live.driver().transactions.abort("x").raise_for_failures()
    assert live.driver().transactions.find_hanging().rows == []
    assert seen(live.replica(follower)) == (["a"] if commit else [])
