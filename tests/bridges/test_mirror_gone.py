"""A mirror of a Kafka cluster that no longer exists: the tier alone, with the log of its metadata topic."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import pytest

from stratalog.bridges.jobs.compare import main as compare_job
from stratalog.bridges.jobs.mirror import main as job
from stratalog.bridges.kafka_tier.layout import MissingKeyError, OpenSegment
from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import SourceRange
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import StoreTimeoutError, UnknownTopicOrPartitionError
from stratalog.partitions.store import Store, StoredObject, open_store
from stratalog.partitions.store.memory import MemoryStore
from tests.bridges.kafka_tier_data import MAIN, Tier, in_memory, opened, real, segment_of
from tests.bridges.mirror_tier_harness import BULK, ONCE, Brokers
from tests.bridges.test_mirror_in_bulk import TwoTasks
from tests.kafka.mirrored import new_cluster
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

pytestmark = real


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
