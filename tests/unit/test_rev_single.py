"""Probes of a reviewer: single cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.partitions.errors import StratalogError
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, traces
from tests.unit.snapshot_harness import keyed
from tests.unit.test_upkeep_erase_of_snapshots import STATE, Erasable


def test_a_producer_is_remembered(tmp_path: Path) -> None:
    live = Erasable(tmp_path).start()

    def send(sequence: int, value: str) -> object:
        return live.cluster.append_batches(
            "t", {0: [keyed([(KEY, value)], live.clock.now_ms())]}, producer="p", sequence=sequence, check=False
        )

    first = send(0, SECRET)
    assert live.erase(KEY).whole
    end = live.log(live.leader()).log_end
    again = send(0, SECRET)
    print(first, again)
    assert live.log(live.leader()).log_end == end, "the retry is a duplicate"
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    send(0, SECRET)
    assert live.log(live.leader()).log_end == end, "the retry is a duplicate"
    send(1, "later")
    assert live.log(live.leader()).log_end == end + 1
    assert traces(live, SECRET) == []


@pytest.mark.parametrize("to", [1, 3, 4, 5, 6])
def test_after_delete_records(tmp_path: Path, to: int) -> None:
    live = Erasable(tmp_path).start()
    try:
        report = live.cluster.topics.delete_records("t", {0: to})
        print(report.failures)
    except (StratalogError, AttributeError, TypeError) as error:
        print(error)
    report = live.erase(KEY)
    print(report.whole, report.failures)
    for broker in (1, 2, 3):
        print(live.state(broker))
    if report.whole:
        live.check_erased()


def test_the_only_key(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    live.begin(copies=3, file_delete_delay_ms="0", segment_bytes="1")
    live.put([(KEY, SECRET)])
    live.put([(KEY, None)])
    assert live.erase(KEY).whole
    assert traces(live, KEY, SECRET) == []
    assert live.state(1) == {}
    live.put([(OTHER, "1")])
    live.take()
    assert live.erase(KEY).whole
    assert live.erase(OTHER).whole
    assert live.state(1) == {}
    live.put([(KEY, "again")])
    assert live.state(2) == {KEY: "again"}
    assert live.cluster.verify(deep=True).ok


def test_no_records(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    live.begin(copies=3, partitions=3, file_delete_delay_ms="0", segment_bytes="1")
    assert live.erase(KEY).whole
    assert live.erase().whole
    live.put([(KEY, SECRET)])
    assert live.erase(KEY).whole
    assert live.erase(KEY).whole
    assert traces(live, KEY, SECRET) == []


@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize("elected", [False, True])
def test_a_transaction_across_the_bound(tmp_path: Path, how: str, elected: bool) -> None:
    live = Erasable(tmp_path).start()
    transaction = live.cluster.transactions.begin("x")
    transaction.append_batches("t", {0: [keyed([("tx", "1"), (KEY, "tx")], live.clock.now_ms())]})
    live.put([("after", "1"), (KEY, "after")])
    report = live.erase(KEY)
    print(report.failures)
    assert not report.whole
    assert traces(live, SECRET) == []
    if elected:
        live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    transaction.append_batches("t", {0: [keyed([("tx2", "1")], live.clock.now_ms())]})
    getattr(transaction, how)()
    live.take()
    tx = {"tx": "1", "tx2": "1"} if how == "commit" else {}
    assert live.state(live.leader()) == {**STATE, **tx, "after": "1", KEY: "after"}
    report = live.erase(KEY, now=True)
    assert report.whole, report.failures
    assert traces(live, SECRET, KEY) == []
    for broker in (1, 2, 3):
        assert live.state(broker) == {**STATE, **tx, "after": "1"}
    transaction = live.cluster.transactions.begin("x")
    transaction.append_batches("t", {0: [keyed([("tx3", "1")], live.clock.now_ms())]})
    transaction.commit()
    assert live.cluster.verify(deep=True).ok


def test_a_damaged_snapshot_of_the_leader_with_one_copy(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True).start(copies=1)
    live.take()
    live.cluster.retain().raise_for_failures()
    live.put([(KEY, "x"), ("new", "1")])
    leader = live.leader()
    _, stored = live.log(leader).listing.checkpoints[-1]
    path = live.root(leader) / stored.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    report = live.erase(KEY, now=True)
    print(report.whole, report.failures)
    assert not report.whole
    assert path.exists()
    report = live.cluster.snapshot("t", by_hand=True, check=False)
    print(report.rows, report.failures)
    assert live.replicas().view.log_start_offset == 6


def test_a_run_without_keys_after_a_run_that_waits(tmp_path: Path) -> None:
    """The note says that the next run deletes the files."""
    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    live.put([(KEY, None)], at_ms=1)
    live.take()
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "3")])
    live.take()
    live.cluster.retain().raise_for_failures()
    report = live.erase(KEY)
    print(report.whole, report.failures, report.notes)
    live.clock.sleep(100)
    report = live.erase()
    print(report.whole, report.failures, report.notes)
    print(traces(live, KEY, SECRET))
    if report.whole:
        assert traces(live, KEY, SECRET) == []


def test_a_run_without_keys_forgets_a_snapshot_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_rev_abandoned import make_only

    """The note says that the next run deletes the files."""
    live = Erasable(tmp_path).start(file_delete_delay_ms=str(10 * DAY_MS))
    live.take()
    live.cluster.retain().raise_for_failures()
    follower = live.followers()[0]
    live.put([(KEY, None)], at_ms=1)
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "3")])
    make_only(live, monkeypatch)
    live.cluster.snapshot("t", by_hand=True)
    live.clock.sleep(3600)
    live.cluster.retain().raise_for_failures()
    live.cluster.vacuum(check=False)
    live.clock.sleep(10 * DAY_MS / 1000)
    live.cluster.retain().raise_for_failures()
    live.cluster.vacuum(check=False)
    live.put([(OTHER, "3")])
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": str(30 * DAY_MS)})
    print(
        live.ids(live.leader()), live.ids(follower), live.replicas().view.log_start_offset, live.log(1).local_start
    )
    report = live.erase(KEY)
    print(report.rows, report.whole, report.failures, report.notes)
    assert not report.whole
    live.clock.sleep(31 * DAY_MS / 1000)
    report = live.erase()
    print(report.whole, report.failures, report.notes)
    print(traces(live, KEY, SECRET))
    if report.whole:
        assert traces(live, KEY, SECRET) == []
