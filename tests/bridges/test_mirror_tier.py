"""A mirror that reads history from the tier of real brokers equals a mirror that reads it from the brokers, and
sends them no requests.
"""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from stratalog.bridges.jobs.compare import main as compare_job
from stratalog.bridges.jobs.mirror import main as job
from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.layout import MissingKeyError, OpenSegment
from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.mirror import bulk, catch_up, side_by_side
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import MirrorSource, SourceRange, SourceRead, SourceRecord
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.replication import append as replication_append
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import StoreTimeoutError, UnknownTopicOrPartitionError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.store import Store, StoredObject, open_store
from stratalog.partitions.store.memory import MemoryStore
from tests.bridges.kafka_tier_data import MAIN, Tier, in_memory, opened, real, segment_of
from tests.bridges.memory_source import MemorySource
from tests.bridges.test_mirror_in_bulk import TwoTasks
from tests.kafka.mirrored import new_cluster
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

pytestmark = real

ONCE = MirrorOptions(replication_factor=2, tier=True)
BULK = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True)


class Brokers(MemorySource):
    """A topic of the data, as its brokers returned it to consumers of committed records."""

    def __init__(self, topic: str) -> None:
        found = Tier(MAIN).truth(topic)
        super().__init__(len(found["partitions"]), topic)
        self.topic_id, self.records_a_read, self.sent = found["topicId"], 200, 0
        moment = [found[name] for name in found if name.startswith("offsets")][-1]
        for number, (part, log) in enumerate(zip(found["partitions"], self.logs, strict=True)):
            ranges = part["readCommittedRanges"]
            log.epochs = dict(part["leaderEpochCheckpoint"])
            log.epoch = max(log.epochs)
            log.start = moment[str(number)]["earliest"]["offset"]
            log.end = moment[str(number)]["lastStable"]["offset"]
            for offset, time, _, epoch, key, value, headers in Tier(MAIN).records(f"{topic}-{number}"):
                if log.start <= offset and any(low <= offset <= high for low, high in ranges):
                    log.records[offset] = SourceRecord(
                        offset, None if time == -1 else time, key, value, headers, epoch
                    )

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        for read in super().read(ranges):
            self.sent += read.records.num_rows
            yield read


def starts(topic: str) -> dict[tuple[str, int], int]:
    return {(topic, number): log.start for number, log in enumerate(Brokers(topic).logs)}


def whole(topic: str) -> TieredSource:
    return TieredSource(opened(MAIN, log_starts=starts(topic)), Brokers(topic))


def run(live: LiveCluster, source: MirrorSource, topic: str, options: MirrorOptions = BULK) -> Report:
    """Run once with tasks, and compare with the brokers."""
    ports = ports_of(live.cluster).with_tasks(TwoTasks())
    report = with_ports(mirror, ports)(source, [topic], options).raise_for_failures()
    with_ports(compare, ports_of(live.cluster))(Brokers(topic), [topic]).raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    return report


@pytest.mark.sample(3)
@pytest.mark.parametrize("options", [ONCE, BULK], ids=["threads", "tasks"])
@pytest.mark.parametrize("topic", ["plain", "txn", "epochs", "unclean", "delete-records", "times-mixed"])
@pytest.mark.slow
def test_history_comes_from_segments_and_the_rest_through_the_brokers(
    topic: str, options: MirrorOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several parts in each segment."""
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, brokers = LiveCluster(tmp_path), Brokers(topic)
    source = TieredSource(opened(MAIN, log_starts=starts(topic)), brokers)
    report = run(live, source, topic, options)
    records = sum(len(log.records) for log in brokers.logs)
    clear = [
        (task.partition, task.piece.start, task.piece.end)
        for task in source._tier.plan(topic, isolation="read_committed").tasks  # type: ignore[union-attr]
    ]
    in_tier = sum(
        any(p == number and low <= offset < high for p, low, high in clear)
        for number, log in enumerate(brokers.logs)
        for offset in log.records
    )
    assert report.totals["from_tier"] == in_tier
    assert brokers.sent == records - in_tier
    assert report.totals["records"] == records
    assert ("tasks" in report.totals) == (options is BULK)
    if options is BULK:
        assert int(report.totals["tasks"] or 0) > len(brokers.logs) * 3, "several in a partition"
    again = run(live, whole(topic), topic, options)
    assert (again.totals["records"], again.totals["from_tier"]) == (0, 0)


def test_unclear_ranges_go_through_the_brokers_and_the_report_says_which_and_why(tmp_path: Path) -> None:
    live, brokers = LiveCluster(tmp_path), Brokers("txn")
    report = run(live, TieredSource(opened(MAIN), brokers), "txn")
    (note,) = [note for note in report.notes if "txn-0" in note]
    assert note.startswith("through the brokers: txn-0 offsets [1033, 1594): the transaction of producer")
    assert brokers.sent


DAMAGE = {
    "log": ("log", lambda data: data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:], "CORRUPT"),
    "gone": ("log", lambda _: None, "not in the storage"),
    "cut off": ("log", lambda data: data[:30_000], "bytes"),
    "index": ("transaction", lambda data: b"", "lists no transaction for the abort"),
    "snapshot": ("producerSnapshot", lambda data: data[:-1] + b"\xff", ""),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("options", [ONCE, BULK], ids=["threads", "tasks"])
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.slow
def test_a_damaged_or_missing_object_is_read_through_the_brokers(
    what: str, options: MirrorOptions, tmp_path: Path
) -> None:
    kind, change, found = DAMAGE[what]
    names = opened(MAIN)
    name = names.layout.objects(segment_of(names, "txn", 1))[kind]
    tier = in_memory(MAIN, lambda one, data: change(data) if one == name else data, "txn-")
    brokers = Brokers("txn")
    report = run(LiveCluster(tmp_path), TieredSource(tier, brokers), "txn", options)
    assert int(report.totals["from_tier"] or 0) > 0
    if found:
        assert any(
            note.startswith("through the brokers: txn-0 offsets [") and found in note for note in report.notes
        )


def test_a_topic_without_a_tier_is_read_through_the_brokers(tmp_path: Path) -> None:
    brokers = Brokers("plain")
    tier = in_memory(MAIN, lambda name, data: data, "txn-")
    for one in [*tier.states.segments]:
        if tier.states.segments[one].topic == "plain":
            del tier.states.segments[one]
    report = run(LiveCluster(tmp_path), TieredSource(tier, brokers), "plain")
    assert report.totals["from_tier"] == 0
    assert any("through the brokers: plain-1: topic 'plain' has no segments" in note for note in report.notes)


def test_a_mirror_of_another_history_is_refused_as_by_the_brokers(tmp_path: Path) -> None:
    """The mirror has records of the leader that lost the unclean election."""
    live, brokers = LiveCluster(tmp_path), Brokers("unclean")
    log = brokers.logs[0]
    kept = dict(log.records), dict(log.epochs), log.end
    log.records = {offset: one for offset, one in log.records.items() if offset < 500}
    log.epochs, log.end, log.epoch = {0: 0}, 500, 0
    for offset in range(500, 520):
        log.records[offset] = SourceRecord(offset, 1, b"lost", b"lost", (), 0)
    log.end = 520
    with_ports(mirror, ports_of(live.cluster))(brokers, ["unclean"], ONCE).raise_for_failures()
    log.records, log.epochs, log.end = kept
    log.epoch = 2
    report = with_ports(mirror, ports_of(live.cluster).with_tasks(TwoTasks()))(
        TieredSource(opened(MAIN), brokers), ["unclean"], BULK
    )
    assert [failure.code for failure in report.failures] == ["LOG_TRUNCATION"]


class AtOnce(LocalTasks):
    processes = 3


@pytest.mark.parametrize("topic", ["plain", "epochs"])
def test_a_task_counts_what_it_has_appended_if_the_next_one_is_faster(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next task appends before this task looks at the log again, so the log then knows only the later append.
    Records of ``epochs`` may have a later leader epoch, too.
    """
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    commit = replication_append._commit

    def slow(staged: Any, name: Any, attempt: Any) -> bool:
        done = commit(staged, name, attempt)
        sleep(0.1)  # the other tasks look every 0.05 s
        return done

    monkeypatch.setattr(replication_append, "_commit", slow)
    live, source = LiveCluster(tmp_path), whole(topic)
    ports = ports_of(live.cluster).with_tasks(AtOnce(24))
    report = with_ports(mirror, ports)(source, [topic], BULK).raise_for_failures()
    records = sum(len(log.records) for log in Brokers(topic).logs)
    assert report.totals["records"] == records
    assert not [note for note in report.notes if "counts" in note]
    with_ports(compare, ports_of(live.cluster))(Brokers(topic), [topic]).raise_for_failures()


def test_tasks_that_run_at_once_append_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 8000)
    live = LiveCluster(tmp_path)
    ports = ports_of(live.cluster).with_tasks(AtOnce(24))
    report = with_ports(mirror, ports)(whole("plain"), ["plain"], BULK).raise_for_failures()
    assert int(report.totals["tasks"] or 0) > 24
    with_ports(compare, ports_of(live.cluster))(Brokers("plain"), ["plain"]).raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize("at", range(0, 12, 3))
@pytest.mark.slow
def test_a_mirror_killed_at_any_append_makes_no_second_copy(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes before an append, after it, or before the acknowledgement."""
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, append = LiveCluster(tmp_path), bulk.append
    for after in (False, True):
        calls = iter(range(1000))

        def dying(*given: Any, after: bool = after, calls: Any = calls, **more: Any) -> Any:
            if next(calls) != at:
                return append(*given, **more)
            if after:
                append(*given, **more)
            raise KeyboardInterrupt

        monkeypatch.setattr(bulk, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            with_ports(mirror, ports_of(live.cluster).with_tasks(TwoTasks()))(whole("plain"), ["plain"], BULK)
    monkeypatch.setattr(bulk, "append", append)
    run(live, whole("plain"), "plain")


@pytest.mark.parametrize(("cores", "tier", "readers"), [(2, True, 2), (1, True, 1), (64, True, 4), (2, False, 4)])
def test_a_tier_has_no_more_readers_than_cores(
    cores: int, tier: bool, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader decodes all the time, and has a partition's records in memory."""
    monkeypatch.setattr(catch_up.os, "cpu_count", lambda: cores)
    assert catch_up._readers(MirrorOptions(tier=tier)) == readers


@pytest.mark.parametrize("appended", [False, True])
def test_the_driver_continues_after_a_lost_task_and_names_what_it_does_not_count(
    appended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, read = LiveCluster(tmp_path), side_by_side.mirror_part
    calls = iter(range(1000))

    def second_fails(work: Any) -> Any:
        if next(calls) == 2:
            if appended:
                read(work)
            raise side_by_side.RetriableError("the executor is gone")
        return read(work)

    monkeypatch.setattr(side_by_side, "mirror_part", second_fails)
    report = run(live, whole("plain"), "plain")
    assert report.totals["lag"] == 0
    found = [
        int(said[2]) - int(said[1])
        for note in report.notes
        if (
            said := re.match(
                r"plain-0: offsets \[(\d+), (\d+)\) are in the log, but not in the counts.*gone", note
            )
        )
    ]
    assert (len(found) == 1) == appended
    assert int(report.totals["from_tier"] or 0) + sum(found) == 2430 + 2040


def test_two_mirrors_at_once_make_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    live, append, draw = LiveCluster(tmp_path), bulk.append, random.Random(1)
    other = ports_of(live.driver())

    def beside(*given: Any, **more: Any) -> Any:
        if draw.random() < 0.2:
            monkeypatch.setattr(bulk, "append", append)
            with_ports(mirror, other)(Brokers("plain"), ["plain"], MirrorOptions()).raise_for_failures()
        return append(*given, **more)

    monkeypatch.setattr(bulk, "append", beside)
    run(live, whole("plain"), "plain")


def test_a_renamed_topic_is_mirrored_from_the_tier(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    options = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True, rename={"plain": "rides"})
    ports = ports_of(live.cluster).with_tasks(TwoTasks())
    report = with_ports(mirror, ports)(whole("plain"), ["plain"], options).raise_for_failures()
    assert int(report.totals["from_tier"] or 0) == 2430 + 2040
    with_ports(compare, ports)(Brokers("plain"), ["plain"]).raise_for_failures()


# ------------------------------------------------------------------------------------ a cluster that no longer
# exists


def gone(tier: KafkaTier) -> TieredSource:
    return TieredSource(tier, None, open_store(f"{Tier(MAIN).path}/remote-log-metadata"))


@pytest.mark.parametrize("options", [ONCE, BULK], ids=["threads", "tasks"])
def test_all_clear_records_of_a_lost_cluster_are_copied(options: MirrorOptions, tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    ports = ports_of(live.cluster).with_tasks(TwoTasks())
    for _ in range(2):
        report = with_ports(mirror, ports)(gone(opened(MAIN)), ["txn"], options).raise_for_failures()
        assert [row["log_end"] for row in report.rows] == [1033, 738]
        assert any(
            note.startswith(
                "the tier does not show whether there were records at txn-0 offsets [1033, 1594): the transaction "
                "of producer"
            )
            for note in report.notes
        )
        assert "txn-0: it is unknown whether the source had records at or after offset 1033" in report.notes
    brokers = Brokers("txn")
    rows = live.cluster.fetch("txn", 0, 0, max_bytes=1 << 30, isolation="read_committed").records
    assert rows.column("offset").to_pylist() == [one for one in sorted(brokers.logs[0].records) if one < 1033]
    config = live.cluster.image.topic("txn").configs
    assert config["mirror.source"] == f"unknown/{brokers.topic_id}"
    assert (config["retention.ms"], config["retention.bytes"]) == ("-1", "-1")


def test_an_earlier_mirror_through_the_brokers_continues_without_them(tmp_path: Path) -> None:
    live, brokers = LiveCluster(tmp_path), Brokers("plain")
    for log in brokers.logs:
        log.end, log.records = 700, {offset: one for offset, one in log.records.items() if offset < 700}
    with_ports(mirror, ports_of(live.cluster))(brokers, ["plain"], ONCE).raise_for_failures()
    known = {brokers.topic_id: "kafka-1"}
    source = TieredSource(opened(MAIN), None, None, known.get)
    report = with_ports(mirror, ports_of(live.cluster))(source, ["plain"], ONCE).raise_for_failures()
    assert [row["log_end"] for row in report.rows] == [2430, 2040]
    assert report.totals["from_tier"] == 2430 + 2040 - 1400
    full = Brokers("plain")
    for log, end in zip(full.logs, (2430, 2040), strict=True):
        log.end, log.records = end, {offset: one for offset, one in log.records.items() if offset < end}
    with_ports(compare, ports_of(live.cluster))(full, ["plain"]).raise_for_failures()


def test_a_lost_segment_in_the_middle_leaves_gaps_and_is_named_by_its_offsets(tmp_path: Path) -> None:
    names = opened(MAIN)
    segment = segment_of(names, "plain", 1)
    log = names.layout.objects(segment)["log"]
    tier = in_memory(MAIN, lambda one, data: None if one == log else data, "plain-")
    live = LiveCluster(tmp_path)
    report = with_ports(mirror, ports_of(live.cluster))(gone(tier), ["plain"], ONCE).raise_for_failures()
    assert any(
        note.startswith(
            f"unknown, so left as gaps: plain-0 offsets [{segment.start_offset}, {segment.next_offset})"
        )
        for note in report.notes
    )
    assert report.rows[0]["gaps"] == segment.next_offset - segment.start_offset


class Away(MemoryStore):
    """A store of which one object does not answer to one kind of request, for a while."""

    away = ("", "")

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._check("read", name)
        return super().read(name, start, end)

    def stat(self, name: str) -> StoredObject:
        self._check("stat", name)
        return super().stat(name)

    def _check(self, request: str, name: str) -> None:
        if (request, name) == self.away:
            raise StoreTimeoutError(f"{name}: no answer")


@pytest.mark.parametrize("request_", ["read", "stat"])
def test_a_segment_that_does_not_answer_is_an_error_and_no_gap(request_: str, tmp_path: Path) -> None:
    """A gap would be final, but the next run can read the segment."""
    names = opened(MAIN)
    store = Away("memory://away", ManualClock())
    for name in Tier(MAIN).store.names(""):
        if "plain-" in name:
            store.create(name, Tier(MAIN).store.read(name))
    names.store = store
    store.away = request_, names.layout.objects(segment_of(names, "plain", 1))["log"]
    live, codes = LiveCluster(tmp_path), list[str]()
    try:
        report = with_ports(mirror, ports_of(live.cluster))(gone(names), ["plain"], ONCE)
        codes += [failure.code for failure in report.failures]
    except StoreTimeoutError as error:
        codes.append(error.code)
    assert codes == ["REQUEST_TIMED_OUT"]
    store.away = "", ""
    report = with_ports(mirror, ports_of(live.cluster))(gone(names), ["plain"], ONCE).raise_for_failures()
    assert [row["log_end"] for row in report.rows] == [2430, 2040]
    full = Brokers("plain")
    for log, end in zip(full.logs, (2430, 2040), strict=True):
        log.end, log.records = end, {offset: one for offset, one in log.records.items() if offset < end}
    with_ports(compare, ports_of(live.cluster))(full, ["plain"]).raise_for_failures()


def test_a_key_that_was_not_given_is_an_error_and_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = opened(MAIN)
    locked, open_segment = segment_of(tier, "plain", 1), tier.layout.open

    def opens(store: Store, segment: RemoteLogSegment) -> OpenSegment:
        if segment == locked:
            raise MissingKeyError("pass its private key")
        return open_segment(store, segment)

    monkeypatch.setattr(tier.layout, "open", opens)
    with pytest.raises(MissingKeyError):
        with_ports(mirror, ports_of(LiveCluster(tmp_path).cluster))(gone(tier), ["plain"], ONCE)


@pytest.mark.parametrize("topic", ["plain", "txn"])
def test_a_mirror_is_compared_with_the_tier_of_a_cluster_that_is_gone(topic: str, tmp_path: Path) -> None:
    live, brokers = LiveCluster(tmp_path), Brokers(topic)
    with_ports(mirror, ports_of(live.cluster))(brokers, [topic], ONCE).raise_for_failures()
    report = with_ports(compare, ports_of(live.cluster))(gone(opened(MAIN)), [topic]).raise_for_failures()
    assert all(row["there"] == row["here"] > 400 for row in report.rows)
    assert any(
        note.startswith(f"{topic}-0: it is unknown whether the source had records") for note in report.notes
    )


def test_a_difference_to_the_tier_is_named_and_unknown_offsets_are_not_compared(tmp_path: Path) -> None:
    live, brokers = LiveCluster(tmp_path), Brokers("plain")
    names = opened(MAIN)
    segment = segment_of(names, "plain", 1)
    other = segment.next_offset + 3
    for offset in (segment.start_offset + 5, other):
        log = brokers.logs[0]
        log.records[offset] = log.records[offset]._replace(value=b"another")
    with_ports(mirror, ports_of(live.cluster))(brokers, ["plain"], ONCE).raise_for_failures()
    log_object = names.layout.objects(segment)["log"]
    tier = in_memory(MAIN, lambda one, data: None if one == log_object else data, "plain-")
    report = with_ports(compare, ports_of(live.cluster))(gone(tier), ["plain"])
    (failure,) = report.failures
    assert str(other) in failure.message
    assert str(segment.start_offset + 5) not in failure.message
    text = f"not compared: plain-0 offsets [{segment.start_offset}, {segment.next_offset})"
    assert any(note.startswith(text) for note in report.notes)


def test_epochs_and_log_starts_are_given_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"{Tier(MAIN).path}/remote-log-metadata"
    words = ["plain", "--cluster", str(tmp_path / "cluster.toml"), "--offline", data]
    words += [
        "--tier",
        f"{Tier(MAIN).path}/tier",
        "--layout",
        "local",
        "--tier-prefix",
        Tier(MAIN).options.prefix,
        "--tier-log-start",
        "plain-0=777",
    ]
    epochs = tmp_path / "leader-epoch-checkpoint"
    known = Tier(MAIN).truth("plain")["partitions"][1]["leaderEpochCheckpoint"]
    cut = known[-1][1]
    lines = "".join(f"{epoch} {start}\n" for epoch, start in [*known[:-1], [known[-1][0] + 1, cut]])
    epochs.write_text(f"0\n{len(known)}\n{lines}")
    words += ["--tier-epochs", f"plain-1={epochs}"]
    with closing(new_cluster(tmp_path)) as cluster:
        assert job(words) == 0, capsys.readouterr()
        assert cluster.fetch("plain", 0, 777).records.column("offset")[0].as_py() == 777
        found = {row["partition"]: (row["log_start"], row["log_end"]) for row in cluster.describe("plain").rows}
        assert found == {0: (777, 2430), 1: (0, cut)}
        assert compare_job(words) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tier-log-start", "plain=777"], "'plain' is not a partition: write TOPIC-PARTITION"),
        (["--tier-log-start", "plain-0=end"], "'end' of plain-0 is not an offset"),
        (["--tier-epochs", "plain-0=nothing"], "the leader epochs of plain-0 in nothing cannot be read"),
        (["--tier-epochs", f"plain-0={__file__}"], "but only 0 is supported"),
        (["--tier-epochs", "plane-0=CHECKPOINT"], "topic 'plane' has no segments in the tier"),
    ],
)
def test_a_mistake_in_what_is_given_by_hand_is_named(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoint").write_text("0\n1\n0 0\n")
    more = [word.replace("CHECKPOINT", str(tmp_path / "checkpoint")) for word in more]
    words = ["plain", "--cluster", str(tmp_path / "cluster.toml"), "--tier", f"{Tier(MAIN).path}/tier"]
    words += ["--layout", "local", "--offline", f"{Tier(MAIN).path}/remote-log-metadata", *more]
    with closing(new_cluster(tmp_path)) as cluster:
        assert job(words) != 0
        assert message in capsys.readouterr().err
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.describe("plain")


def test_a_source_travels_to_a_task_without_the_metadata() -> None:
    source = gone(opened(MAIN))
    parts = source.parts(("plain", 0), SourceRange(0, 2432))
    assert len(parts) > 4
    there = pickle.loads(pickle.dumps(source))
    assert [one.start for one in there.parts(("plain", 0), SourceRange(0, 2432))] == [one.start for one in parts]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "h:1", "--layout", "aiven"], "--layout needs --tier"),
        (["--from", "h:1", "--tier", "/t"], "--tier needs --layout"),
        (["--offline", "/m"], "--offline needs --tier"),
        (["--from", "h:1", "--offline", "/m"], "not allowed with"),
        (["--end", "--tier", "/t", "--layout", "local"], "cannot be used together"),
        (["--from", "h:1", "--tier", "/t", "--layout", "local", "--tier-epochs", "t-0=f"], "needs --offline"),
        (["--from", "h:1", "--tier", "/t", "--layout", "local", "--tier-log-start", "t-0=1"], "needs --offline"),
    ],
)
def test_the_options_of_a_tier_go_together(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LiveCluster(tmp_path)
    try:
        status = job(["t", *words, "--cluster", str(tmp_path / "cluster.toml")])
    except SystemExit as error:
        status = int(error.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err
