"""A completely expired log: it has no file, and still knows its end and its producers (Kafka's UnifiedLog deletes
the expired active segment; then log start = log end)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import FoundOffset, OffsetSpec, UnknownOffset
from stratalog.partitions.errors import OffsetOutOfRangeError
from stratalog.partitions.root import format_root
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.harness import batch
from tests.unit.restore_harness import restored

HOUR_MS = 3_600_000
KINDS = ("local", "both tiers")


def retained(live: LiveCluster) -> None:
    """Run retention twice: it moves starts first, then deletes the files below them."""
    for _ in range(2):
        live.cluster.retain().raise_for_failures()


def expired(folder: Path, kind: str) -> LiveCluster:
    """Offsets 0 to 2, by producer ``p``, sequences 0 to 2, all of whose files retention.ms has deleted."""
    live = LiveCluster(folder)
    configs = {"retention_ms": str(HOUR_MS), "file_delete_delay_ms": "0"}
    if kind == "local":
        live.topic(**configs)
    else:
        live.tiered(**configs)
    began_ms = live.clock.now_ms()
    for number, value in enumerate("abc"):
        live.append([value], at_ms=began_ms, producer="p", sequence=number).raise_for_failures()
    if kind != "local":
        live.cluster.tier().raise_for_failures()
    live.clock.advance_ms(HOUR_MS)
    retained(live)
    assert live.read()[0] == list("abc"), "exactly as old as allowed is kept"
    live.clock.advance_ms(1)
    retained(live)
    return live


def on_brokers(live: LiveCluster) -> list[str]:
    """Data files of the topic."""
    return [name for name in live.on_brokers() if "/t-" in name and name.endswith(".parquet")]


def offsets(live: LiveCluster) -> dict[str, object]:
    found = {spec.name: live.cluster.offsets("t", spec)[0] for spec in OffsetSpec}
    return {name: at.offset if isinstance(at, FoundOffset) else None for name, at in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_quiet_partition_keeps_nothing_that_is_too_old(tmp_path: Path, kind: str) -> None:
    live = expired(tmp_path, kind)
    assert on_brokers(live) == []
    assert live.replicas().view.log_start_offset == 3
    for broker in (1, 2, 3):
        log = live.log(broker)
        assert (log.local_start, log.high_watermark, log.log_end, log.chain) == (3, 3, 3, ())
    assert offsets(live) == {
        "LATEST": 3,
        "EARLIEST": 3,
        "EARLIEST_LOCAL": 3,
        "MAX_TIMESTAMP": None,
        "LAST_TIERED": None,
        "EARLIEST_PENDING_UPLOAD": None if kind == "local" else 3,
    }
    assert isinstance(live.cluster.offsets("t", "1970-01-01")[0], UnknownOffset)
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_readers_find_nothing_and_continue_with_what_is_appended(tmp_path: Path, kind: str) -> None:
    live = expired(tmp_path, kind)
    (plan,) = live.cluster.plan_read("t").partitions
    assert (plan.start, plan.end, plan.files) == (3, 3, ())
    assert live.cluster.plan_read("t", last=5).records == 0
    fetched = live.cluster.fetch("t", 0, 3)
    assert (fetched.records.num_rows, fetched.next_offset, fetched.log_start) == (0, 3, 3)
    with pytest.raises(OffsetOutOfRangeError):
        live.cluster.fetch("t", 0, 2)
    tail = live.cluster.tail("t", start="earliest", follow=False)
    assert list(tail) == []
    live.append(["d"], at_ms=live.clock.now_ms()).raise_for_failures()
    assert live.read() == {0: ["d"]}
    assert live.cluster.fetch("t", 0, 3).records.column("offset").to_pylist() == [3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_producers_are_known_and_offsets_continue(tmp_path: Path, kind: str) -> None:
    live = expired(tmp_path, kind)
    again = live.append(["c"], at_ms=live.clock.now_ms() - HOUR_MS - 1, producer="p", sequence=2)
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 2)]
    later = live.append(["d"], at_ms=live.clock.now_ms(), producer="p", sequence=3)
    assert rows_of(later, "outcome", "base_offset") == [("acknowledged", 3)]
    for job in (live.cluster.replicate, live.cluster.merge, live.cluster.verify, live.cluster.heal):
        job().raise_for_failures()
    assert live.data(1) == live.data(2) == live.data(3)
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_leaders_change_and_replicas_come_and_lose_their_disk(tmp_path: Path, kind: str) -> None:
    live = expired(tmp_path, kind)
    heir = live.followers()[0]
    live.cluster.elect("t", leader=heir).raise_for_failures()
    live.append(["d"], at_ms=live.clock.now_ms()).raise_for_failures()
    assert live.log(heir).lineage.entries[-1].start_offset == 3
    live.clock.advance_ms(HOUR_MS + 1)
    retained(live)
    live.wipe(3)
    format_root(live.store(3), "c", 3, live.new_id)
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert (live.log(3).local_start, live.log(3).log_end) == (4, 4)
    live.cluster.elect("t", leader=3).raise_for_failures()
    later = live.append(["e"], at_ms=live.clock.now_ms(), producer="p", sequence=3)
    assert rows_of(later, "base_offset") == [(4,)]
    assert live.read() == {0: ["e"]}
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize("kind", KINDS)
def test_an_unclean_election_of_a_replica_that_was_away_continues_at_the_log_end(
    tmp_path: Path, kind: str
) -> None:
    """The elected replica still has files, and must assign no offset a second time."""
    live = LiveCluster(tmp_path)
    (live.topic if kind == "local" else live.tiered)(retention_ms=str(HOUR_MS), file_delete_delay_ms="0")
    live.append(["a"], at_ms=live.clock.now_ms()).raise_for_failures()
    away = live.followers()[0]
    live.cluster.brokers.fence(away).raise_for_failures()
    live.append(["b"], at_ms=live.clock.now_ms()).raise_for_failures()
    live.clock.advance_ms(HOUR_MS + 1)
    retained(live)
    others = [broker for broker in (1, 2, 3) if broker != away]
    live.cluster.brokers.unfence(away).raise_for_failures()
    live.cluster.brokers.fence(others, force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    assert live.leader() == away
    later = live.append(["c"], at_ms=live.clock.now_ms())
    assert rows_of(later, "base_offset") == [(2,)]
    assert live.read() == {0: ["c"]}


def test_uncommitted_records_do_not_expire(tmp_path: Path) -> None:
    """Kafka: no segment beyond the high watermark is deleted, so that the log start never passes it."""
    live = LiveCluster(tmp_path)
    live.topic(retention_ms=str(HOUR_MS))
    live.append(["a"]).raise_for_failures()
    live.append(["b"], acks="leader").raise_for_failures()
    live.clock.advance_ms(2 * HOUR_MS)
    retained(live)
    assert (live.replicas().view.log_start_offset, live.log(live.leader()).log_end) == (1, 2)
    live.cluster.replicate().raise_for_failures()
    retained(live)
    assert live.replicas().view.log_start_offset == 2


def expired_on_brokers(folder: Path) -> LiveCluster:
    """A topic whose brokers keep an hour, and whose remote tier keeps everything: the active segment is uploaded
    when it is too old for the brokers.
    """
    live = LiveCluster(folder)
    live.tiered(segment_bytes=str(1 << 30), local_retention_bytes="-2", local_retention_ms=str(HOUR_MS))
    for value in "abc":
        live.append([value], at_ms=live.clock.now_ms()).raise_for_failures()
    live.cluster.tier(due=True).raise_for_failures()
    retained(live)
    assert (live.log(live.leader()).local_start, [n for n in live.in_remote() if n.endswith(".parquet")]) == (
        0,
        [],
    )
    live.clock.advance_ms(HOUR_MS + 1)
    live.cluster.tier(due=True).raise_for_failures()
    retained(live)
    return live


@pytest.mark.slow
def test_an_active_segment_that_is_too_old_for_the_brokers_moves_to_the_remote_tier(tmp_path: Path) -> None:
    """Kafka rolls the active segment, "to make it eligible for deletion", and deletes it when it is uploaded."""
    live = expired_on_brokers(tmp_path)
    assert [live.log(broker).local_start for broker in (1, 2, 3)] == [3, 3, 3]
    assert live.replicas().view.log_start_offset == 0
    assert offsets(live) == {
        "LATEST": 3,
        "EARLIEST": 0,
        "EARLIEST_LOCAL": 3,
        "MAX_TIMESTAMP": 0,
        "LAST_TIERED": 2,
        "EARLIEST_PENDING_UPLOAD": 3,
    }
    assert live.read() == {0: list("abc")}
    live.append(["d"], at_ms=live.clock.now_ms()).raise_for_failures()
    assert live.read() == {0: list("abcd")}
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_a_follower_begins_behind_what_is_in_the_remote_tier_alone(tmp_path: Path) -> None:
    live = expired_on_brokers(tmp_path)
    lost = live.followers()[0]
    live.cluster.reassign({("t", 0): [b for b in (1, 2, 3) if b != lost]}).raise_for_failures()
    live.cluster.reassign({("t", 0): [1, 2, 3]}).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert (live.log(lost).local_start, live.log(lost).log_end) == (3, 3)
    live.cluster.elect("t", leader=lost).raise_for_failures()
    live.append(["d"], at_ms=live.clock.now_ms()).raise_for_failures()
    assert live.read() == {0: list("abcd")}


@pytest.mark.slow
def test_records_of_aborted_transactions_stay_unseen_in_the_remote_tier(tmp_path: Path) -> None:
    """The last local file names the remote files that may have aborted records; a log that had no local file for a
    while assumes that any file may.
    """
    live = LiveCluster(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.tiered(local_retention_bytes="-2", local_retention_ms=str(HOUR_MS))
    now = live.clock.now_ms()
    for values, end in ((["a"], "commit"), (["b"], "abort")):
        transaction = live.cluster.transactions.begin("x")
        transaction.append_batches("t", {0: [batch(values, now * 1000)]})
        getattr(transaction, end)()
    live.append(["c"], at_ms=now).raise_for_failures()
    live.clock.advance_ms(HOUR_MS + 1)
    live.tier_and_drop("t")
    assert live.log(live.leader()).chain == ()
    live.append(["d"], at_ms=live.clock.now_ms(), driver=live.driver()).raise_for_failures()
    remote = [part for part in live.cluster.plan_read("t", isolation="read_committed") if part.remote]
    assert remote
    assert all(part.marked for part in remote)
    read = live.cluster.tail("t", start="earliest", follow=False, isolation="read_committed")
    assert [value for table in read for value in table.column("value").to_pylist()] == [b"a", b"c", b"d"]


@pytest.mark.slow
@pytest.mark.parametrize("in_remote", [True, False])
def test_a_restored_cluster_continues_at_the_log_end(tmp_path: Path, in_remote: bool) -> None:
    live = expired_on_brokers(tmp_path) if in_remote else expired(tmp_path, "both tiers")
    live = restored(live)
    found = offsets(live)
    assert (found["EARLIEST"], found["EARLIEST_LOCAL"], found["LATEST"]) == (0 if in_remote else 3, 3, 3)
    live.append(["d"], at_ms=live.clock.now_ms()).raise_for_failures()
    assert live.read() == {0: ["a", "b", "c", "d"] if in_remote else ["d"]}
