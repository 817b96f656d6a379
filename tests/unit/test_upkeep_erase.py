"""Erasing the records of keys from a whole cluster: no trace of them is left, and everything else is unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.reading.look import local_pieces
from stratalog.engine.reading.stream_read import StreamTask
from stratalog.engine.reading.stream_tasks import part as part_of
from stratalog.engine.replicas.nearest import follower_log
from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.partitions import erasure
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    PolicyViolationError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.isolation import Isolation
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, fence, report_of, rows_of
from tests.unit.erase_harness import (
    DAY_MS,
    KEPT,
    KEY,
    OTHER,
    ROWS,
    SECRET,
    Erasable,
    erase_two_at_once,
    stop_at,
    traces,
)
from tests.unit.faulty_store import WRITES, Faults
from tests.unit.snapshot_harness import keyed
from tests.unit.test_upkeep_compact import offsets_of


def test_nothing_of_a_key_is_left_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    assert len(set(traces(live, KEY))) == 9, "the test sees traces: three files on three brokers"
    states = {broker: live.replica(broker).producers(live.log(broker)) for broker in (1, 2, 3)}
    logs = {broker: live.log(broker) for broker in (1, 2, 3)}
    live.cluster.groups.commit("g", {("t", 0): 2})
    report = live.erase(KEY, certificate=tmp_path / "erased.json")
    assert rows_of(report, "records", "files", "deleted_files", "not_erased") == [(3, 3, 9, 0)]
    assert report.whole
    assert live.everywhere() == KEPT
    assert traces(live, KEY, SECRET) == []
    assert KEY not in (tmp_path / "erased.json").read_text()
    for broker in (1, 2, 3):
        log = live.log(broker)
        assert (log.log_end, log.high_watermark, log.lineage) == (6, 6, logs[broker].lineage)
        assert live.replica(broker).producers(log) == states[broker]
    assert live.cluster.verify(deep=True).ok
    assert live.cluster.heal().ok
    assert [str(row["state"]) for row in live.cluster.verify_erased(tmp_path / "erased.json").rows] == [
        "erased"
    ] * 3
    assert not any(one.offsets for of in live.cluster.image.erasures["0" * 31 + "9"].values() for one in of)


def test_readers_streams_and_groups_go_on(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    replicas = ports_of(live.cluster).storage.replicas(live.cluster.image.views("t")[0])
    parts = tuple(part_of(0, one) for one in local_pieces(replicas.leader, replicas.leader.log()))
    task = StreamTask("t", parts, {0: replicas}, None, Isolation.READ_COMMITTED)
    live.cluster.groups.commit("g", {("t", 0): 3})
    live.erase(KEY).raise_for_failures()
    assert offsets_of(task) == [*KEPT], "a task that was planned before reads the segments in their place"
    found, offset = [], 0
    while (fetched := live.cluster.fetch("t", 0, offset)).records.num_rows or offset < fetched.next_offset:
        found += fetched.records.column("offset").to_pylist()
        offset = fetched.next_offset
    assert (found, offset) == ([*KEPT], 6)
    live.put((KEY, "again"))
    assert live.everywhere() == {**KEPT, 6: (KEY, "again")}, "what is appended later is another record"
    assert live.cluster.groups.committed("g")["t", 0].offset == 3


def test_replaced_files_wait_for_their_readers(tmp_path: Path) -> None:
    live = Erasable(tmp_path, file_delete_delay_ms="60000")
    first = live.erase(KEY)
    assert first.ok
    assert not first.whole
    assert rows_of(first, "deleted_files", "not_erased") == [(0, 9)]
    assert "deleted by the next run" in str(first.notes)
    assert live.everywhere() == KEPT
    assert not live.erase().whole, "too early"
    live.clock.sleep(61)
    last = live.erase()
    assert last.whole
    assert rows_of(last, "records", "deleted_files") == [(3, 9)]
    assert traces(live, KEY, SECRET) == []


def test_now_deletes_them_at_once(tmp_path: Path) -> None:
    live = Erasable(tmp_path, file_delete_delay_ms="60000")
    assert live.erase(KEY, now=True).whole
    assert traces(live, KEY, SECRET) == []


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    with live.unchanged():
        report = live.erase(KEY, dry_run=True)
    assert rows_of(report, "records", "files") == [(3, 3)]
    assert report.certificate is None
    assert report.estimate is not None


def test_a_dry_run_counts_nothing_in_a_partition_that_it_cannot_search(tmp_path: Path) -> None:
    """A count of 0 would say that there is nothing to erase."""
    live = Erasable(tmp_path, on_disk=True)
    live.topic("u", partitions=3, copies=1)
    with live.unreachable(3):
        report = live.cluster.erase("u", [KEY], dry_run=True, check=False)
    of = {live.leader("u", row["partition"]): row["records"] for row in report.rows}
    assert of == {1: 0, 2: 0, 3: None}
    assert report.totals["records"] is None
    assert "records -, files -" in report.headline


@pytest.mark.sample(16)
@pytest.mark.parametrize("delay_ms", [0, 60_000])
@pytest.mark.parametrize("keys", [(), (KEY,), (KEY, OTHER)])
@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("before", ["nothing", "stopped", "too early", "due"])
def test_a_dry_run_counts_what_a_run_then_does(
    tmp_path: Path, delay_ms: int, keys: tuple[str, ...], now: bool, before: str
) -> None:
    live = Erasable(tmp_path, file_delete_delay_ms=str(delay_ms))
    if before == "stopped":
        stop_at(live, "erase_partition")
    elif before != "nothing":
        live.erase(KEY)
        live.clock.sleep(61 if before == "due" else 0)
    twice = before == "stopped" and OTHER in keys
    columns = ["records", "files", "deleted_files", *([] if twice else ["read_bytes"])]
    with live.unchanged():
        planned = rows_of(live.erase(*keys, now=now, dry_run=True), *columns)
    assert planned == rows_of(live.erase(*keys, now=now), *columns)


@pytest.mark.parametrize(
    ("configs", "options", "error", "named"),
    [
        (
            {"remote_iceberg_table": "c.n.t"},
            {},
            PolicyViolationError,
            "topic 't': it is not tiered, but the Iceberg table c.n.t may still contain its records",
        ),
        (
            {"cleanup_policy": "snapshot", "remote_snapshot_table_enable": "true"},
            {"before": "2030-01-01"},
            PolicyViolationError,
            "erase whole keys, without a time",
        ),
        ({"cleanup_policy": "compact"}, {"before": "2030-01-01"}, PolicyViolationError, "it is compacted"),
        ({}, {"topics": "__consumer_offsets"}, StratalogError, "internal"),
        ({}, {"topics": "nope"}, UnknownTopicOrPartitionError, "nope"),
        ({}, {"keys": []}, InvalidCallError, "no key was given"),
        ({}, {"keys": [None]}, InvalidCallError, "null is not a key"),
        ({}, {"keys": [1.5]}, InvalidCallError, "key 1 is not of the topic's key type"),
        ({}, {"keys": "abc"}, InvalidCallError, "give \\[key\\]"),
        ({}, {"keys": None, "before": "2030-01-01"}, InvalidCallError, "before needs keys"),
        ({}, {"topics": []}, InvalidCallError, "name the topics"),
    ],
)
def test_a_topic_that_cannot_be_erased_everywhere_is_refused_by_name(
    tmp_path: Path, configs: dict[str, str], options: dict[str, Any], error: type[Exception], named: str
) -> None:
    live = Erasable(tmp_path, **configs)
    live.cluster.groups.commit("g", {("t", 0): 1})
    given = {"topics": "t", "keys": [KEY], **options}
    with live.unchanged(), pytest.raises(error, match=named):
        live.cluster.erase(given.pop("topics"), **given, dry_run=True)
    before = {name: data for name, data in live.on_brokers().items() if "/t-" in name}
    with pytest.raises(error, match=named):
        live.cluster.erase({"topics": "t", **options}["topics"], **given)
    assert {name: data for name, data in live.on_brokers().items() if "/t-" in name} == before


def test_a_topic_that_was_tiered_is_refused_while_the_remote_tier_has_its_records(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    folder = live.remote / live.cluster.image.topic("t").folder
    folder.mkdir()
    (folder / "left.parquet").write_bytes(b"x")
    with pytest.raises(PolicyViolationError, match="but no table that lists them"):
        live.erase(KEY)


def test_a_protected_topic_keeps_its_records(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    live.cluster.topics.protect("t", days=1)
    with pytest.raises(PolicyViolationError, match="protected"):
        live.erase(KEY)
    assert live.everywhere() == dict(enumerate(ROWS))
    live.clock.sleep(2 * DAY_MS / 1000)
    assert live.erase(KEY).whole


def test_configs_that_an_erased_topic_cannot_take_are_refused(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    live.erase(KEY).raise_for_failures()
    with pytest.raises(InvalidConfigError, match="records were erased from this topic"):
        live.cluster.topics.alter_configs("t", {"cleanup.policy": "snapshot"})
    live.cluster.topics.alter_configs("t", {"unclean.leader.election.enable": "true"})
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "compact", "unclean.leader.election.enable": None})


@pytest.mark.sample(4)
@pytest.mark.parametrize("step", ["erase_partition", "clean", "look_everywhere", "forget", "certify"])
@pytest.mark.parametrize("elected", [False, True])
def test_the_next_run_goes_on_wherever_the_last_one_ended(tmp_path: Path, step: str, elected: bool) -> None:
    live = Erasable(tmp_path)
    stop_at(live, step)
    if elected:
        live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    last = live.erase()
    assert last.whole
    assert live.everywhere() == KEPT
    assert traces(live, KEY, SECRET) == []
    assert live.erase(KEY).whole
    assert live.cluster.verify(deep=True).ok


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(1, 40, 3))
def test_a_driver_that_dies_at_any_write_leaves_a_whole_log(tmp_path: Path, number: int) -> None:
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap)
    with faults.dies_at(number, *WRITES):
        live.erase(KEY)
    for broker in (1, 2, 3):
        held = live.held(broker)
        assert KEPT.items() <= held.items()
        assert held.items() <= dict(enumerate(ROWS)).items()
    assert live.driver().erase("t", [KEY]).whole
    assert live.everywhere() == KEPT
    assert traces(live, KEY, SECRET) == []


def test_a_run_without_keys_says_what_it_did_not_look_for(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    stop_at(live, "find_records")
    report = live.erase()
    assert "give the keys or the condition again" in str(report.notes)
    assert live.everywhere() == dict(enumerate(ROWS))
    assert live.erase(KEY).whole


def test_a_topic_that_is_deleted_meanwhile_is_no_erased_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Erasable(tmp_path)
    monkeypatch.setattr(erasing._Erasing, "remove", lambda _: live.driver().topics.delete("t"))
    report = live.erase(KEY)
    assert not report.whole
    assert "was deleted in the meantime" in str(report.failures)


def test_two_at_once_harm_nothing(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    erase_two_at_once(live, lambda: live.put(("z", "1")))
    assert live.everywhere() == {6: ("z", "1")}


def test_heal_takes_no_erased_record_from_a_volume_that_was_away(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True)
    away = live.followers()[0]
    with live.unreachable(away):
        live.erase(KEY, now=True)
    (gone,) = {link.file.name for link in live.log(live.leader()).chain if link.start == 3}
    for broker in live.isr():
        replica = live.replica(broker)
        replica.store.delete([replica.path(gone)])
    assert KEY in str(live.held(away))
    report = live.cluster.heal("t", check=False)
    assert not report.ok
    assert KEY not in str([live.held(broker) for broker in live.isr()])


def test_a_volume_that_was_away_is_named_and_brought_up_before_it_serves_a_read(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True)
    away = live.followers()[0]
    with live.unreachable(away):
        report = live.erase(KEY, certificate=tmp_path / "first.json")
        assert not report.ok
        assert not report.whole
        assert f"broker {away}" in str(report.failures)
        assert away not in live.isr(), "it cannot lead with what it has"
        live.put(("z", "1"))
        left = read_certificate(tmp_path / "first.json").topics[0].partitions[0].not_erased
        assert any(one.where == f"broker {away}" for one in left)
        (unknown,) = {
            str(row["state"])
            for row in live.cluster.verify_erased(tmp_path / "first.json").rows
            if row["broker"] == away
        }
        assert unknown == "unknown"
    fence(live, *(broker for broker in (1, 2, 3) if broker != away))
    ports = ports_of(live.cluster)
    assert live.cluster.elect("t", unclean=True, check=False).failures, "it may not lead uncleanly either"
    live.cluster.brokers.unfence([1, 2, 3]).raise_for_failures()
    states = {row["broker"]: row["state"] for row in live.cluster.verify_erased(tmp_path / "first.json").rows}
    assert states[away] == "not erased"
    assert KEY in str(live.held(away)), "it is back, and not brought up yet"
    replicas = ports.storage.replicas(ports.metadata.image().views("t")[0])
    leader = replicas.leader.log()
    assert follower_log(replicas, away, leader) is None, "no read uses it"
    live.cluster.replicate().raise_for_failures()
    live.clock.sleep(60)
    live.cluster.replicate().raise_for_failures()
    replicas = ports.storage.replicas(ports.metadata.image().views("t")[0])
    assert follower_log(replicas, away, replicas.leader.log()) is not None
    assert live.erase(certificate=tmp_path / "last.json").whole
    assert live.everywhere() == {**KEPT, 6: ("z", "1")}
    assert traces(live, KEY, SECRET) == []


def test_a_former_replica_is_named_until_vacuum_has_deleted_it(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=False)
    replica = live.replica(live.followers()[0])
    former = replica.folder.replace(".9", ".3") if ".9" in replica.folder else f"{replica.folder}1"
    first = live.log(replica.broker_id).chain[0].file.object
    copied = replica.store.read(first.name)
    replica.store.create(f"{former}/{first.name.rpartition('/')[2]}", copied)
    report = live.erase(KEY)
    assert "run `stratalog vacuum`" in str(report.failures)
    assert not report.whole
    live.clock.sleep(3 * DAY_MS / 1000)
    live.cluster.vacuum().raise_for_failures()
    assert live.erase(KEY).whole
    assert traces(live, KEY, SECRET) == []


def test_many_ranges_take_several_erasures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Erasable(tmp_path)
    for module in ("upkeep.erasing.commits", "upkeep.erasing.tasks", "metadata.erasure_commands"):
        monkeypatch.setattr(f"stratalog.engine.{module}.MOST_RANGES", 1)
    report = live.erase(KEY)
    assert rows_of(report, "records") == [(3,)]
    assert live.everywhere() == KEPT
    assert live.replicas().view.generation == 3
    assert erasure.MOST_RANGES > 1


def test_a_compacted_topic_is_erased_and_compacted_in_turns(tmp_path: Path) -> None:
    live = Erasable(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    live.cluster.compact().raise_for_failures()
    assert live.erase(KEY).whole
    assert KEY not in str(live.everywhere())
    kept = live.everywhere()
    live.put((OTHER, "4"))
    live.put(("z", "1"))
    live.put(("z", "2"))
    live.cluster.compact().raise_for_failures()
    assert live.everywhere() == {6: (OTHER, "4"), 7: ("z", "1"), 8: ("z", "2")}
    assert kept.keys() - live.everywhere().keys()
    assert live.erase("z").whole
    assert live.everywhere() == {6: (OTHER, "4")}
    assert live.cluster.verify(deep=True).ok


def test_an_erasure_may_take_only_records_from_before_a_time(tmp_path: Path) -> None:
    live = Erasable(tmp_path, fill=False)
    live.put((KEY, "old"))
    live.clock.sleep(10)
    middle = live.clock.now_ms()
    live.clock.sleep(10)
    live.put((KEY, "new"))
    live.erase(
        KEY, before=datetime.fromtimestamp(middle / 1000, UTC), certificate=tmp_path / "c"
    ).raise_for_failures()
    assert live.everywhere() == {1: (KEY, "new")}
    assert live.cluster.verify_erased(tmp_path / "c").ok


def test_verify_says_of_each_copy_one_of_three(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True)
    data = {name: data for name, data in live.on_brokers().items() if "/t-" in name and name.endswith(".parquet")}
    assert live.erase(KEY, now=True, certificate=tmp_path / "c").whole
    back = next(name for name in data if "/b2/" in name)
    Path(back.removeprefix("file://")).write_bytes(data[back])
    damaged = next(path for path in live.root(3).rglob("*.parquet") if "/t-" in str(path))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    report = report_of(lambda: live.cluster.verify_erased(tmp_path / "c"))
    assert [(row["broker"], row["state"]) for row in report.rows] == [
        (1, "erased"),
        (2, "not erased"),
        (3, "unknown"),
    ]
    assert {one.code for one in report.failures} == {"NOT_ERASED", "UNKNOWN"}


def test_the_history_has_the_erasure_and_not_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    live = Erasable(tmp_path)
    report = live.erase(KEY)
    assert report.certificate is not None
    events = [row for row in live.cluster.history().rows if row["operation"] == "erase"]
    assert events
    assert KEY not in str(events)
    assert report.certificate.sha256 in str(events)
    assert traces(live, KEY) == []


@pytest.mark.nightly
@pytest.mark.long("1,000 segments")
def test_the_cost_is_linear_in_the_touched_segments(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=1)
    live.topic(copies=1, segment_bytes="1", file_delete_delay_ms="0")
    for number in range(1000):
        key = "hundred" if number % 10 == 1 else "ten" if number % 100 == 2 else "one" if number == 503 else OTHER
        live.cluster.append_batches("t", {0: [keyed([(key, f"v{number}")], 1)]}).raise_for_failures()
    cost = {}
    for touched, key in {1: "one", 10: "ten", 100: "hundred"}.items():
        report = live.cluster.erase("t", [key])
        assert rows_of(report, "records", "files", "deleted_files") == [(touched, touched, touched)]
        cost[touched] = report.counts
    of_one = (cost[100].written_bytes - cost[10].written_bytes) / 90
    assert of_one < 5_000, "a segment of one record has less"
    for touched, counts in cost.items():
        assert counts.written_bytes < 50_000 + touched * 5_000
        assert counts.creates + counts.copies < 20 + 3 * touched
