"""Topics that mirror others: the seam in the log, the run of a mirror, its end; with a source in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog.bridges.jobs.mirror import main as job
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import end_mirror, mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.rows import batches_of
from stratalog.bridges.mirror.source import SourceBounds
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.records.append import append_mirrored
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    NoMajorityError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from stratalog.partitions.producers import ProducerAppend
from tests.bridges.memory_source import OTHER_ID, TOPIC_ID, MemoryLog, MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.harness import batch

ALL = MirrorOptions(replication_factor=3)


def mirrored(live: LiveCluster, source: MemorySource, options: MirrorOptions = ALL) -> Report:
    """Mirror once, and compare."""
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], options).raise_for_failures()
    equal(live, source)
    return report


def equal(live: LiveCluster, source: MemorySource) -> Report:
    return with_ports(compare, ports_of(live.cluster))(source, ["t"]).raise_for_failures()


def seen(live: LiveCluster, partition: int = 0, offset: int = 0) -> list[tuple[int, str | None]]:
    """Offsets and values that a fetch returns."""
    found: list[tuple[int, str | None]] = []
    while True:
        fetched = live.cluster.fetch("t", partition, offset)
        for row in fetched.records.select(["offset", "value"]).to_pylist():
            found.append((row["offset"], None if row["value"] is None else row["value"].decode()))
        if fetched.next_offset == offset:
            return found
        offset = fetched.next_offset


def some(start: int = 0) -> MemorySource:
    """A partition with records, gaps between them and at its end, tombstones, and epochs; and an empty
    partition."""
    source = MemorySource(2)
    log = source.logs[0]
    log.start = log.end = start
    log.append("a", "b", gaps=2)
    log.append("c", None, gaps=1)
    log.epoch = 3
    log.append("d", "e", "f", gaps=1)
    return source


@pytest.mark.parametrize("start", [0, 5_000_000_000])
def test_a_mirror_has_the_same_records_at_the_same_offsets(start: int, tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some(start)
    report = mirrored(live, source)
    values = [(0, "a"), (1, "b"), (4, "c"), (5, None), (7, "d"), (8, "e"), (9, "f")]
    assert seen(live, offset=start) == [(start + offset, value) for offset, value in values]
    row = report.rows[0]
    assert (row["records"], row["gaps"], row["lag"], row["leader_epoch"]) == (7, 4, 0, 3)
    assert live.cluster.offsets("t", OffsetSpec.LATEST)[0] == FoundOffset(start + 11, None, 1)
    assert live.cluster.offsets("t", OffsetSpec.EARLIEST)[0] == FoundOffset(start, None, 1)
    live.cluster.replicate().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert mirrored(live, source).totals["records"] == 0


@pytest.mark.slow
def test_gaps_are_no_records_in_either_tier_nor_merged_nor_among_the_last(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    live.cluster.topics.alter_configs("t", {"segment.merge.min.files": "2"})
    before = seen(live)
    assert live.cluster.merge().raise_for_failures().totals["segments"]
    assert seen(live) == before
    source.logs[0].append("g", gaps=30)
    source.logs[0].append("h")
    mirrored(live, source)
    live.cluster.topics.alter_configs("t", TIERED)
    assert live.cluster.tier().raise_for_failures().totals["uploaded_files"]
    live.cluster.retain().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    equal(live, source)
    assert seen(live) == [*before, (11, "g"), (42, "h")]
    parts = live.cluster.plan_read("t", last=3, partitions=[0])
    assert min(part.start for part in parts) == 9, "h at 42, g at 11, f at 9"
    live.cluster.verify(deep=True).raise_for_failures()


def test_nobody_else_appends_until_it_is_ended(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    ends = "stratalog mirror t --end"
    with pytest.raises(PolicyViolationError, match=ends):
        live.append(["mine"])
    with pytest.raises(PolicyViolationError, match=ends):
        live.cluster.produce("t", [{"value": b"mine"}])
    transaction = live.cluster.transactions.begin("id")
    with pytest.raises(PolicyViolationError, match=ends):
        transaction.append_batches("t", {0: [batch(["mine"])]})
    transaction.abort()
    with pytest.raises(InvalidConfigError, match="a mirror must start at the creation of the topic"):
        live.cluster.topics.alter_configs("t", {"mirror.source": f"kafka-1/{OTHER_ID}"})
    with_ports(end_mirror, ports_of(live.cluster))(["t"])
    live.append(["mine"]).raise_for_failures()
    assert seen(live)[-1] == (11, "mine")
    source.logs[0].append("not mine")
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(f.item, f.code) for f in report.failures] == [("t", "TOPIC_ALREADY_EXISTS")]


def test_the_end_of_one_mirror_does_not_hide_that_another_has_not_ended(tmp_path: Path) -> None:
    live, source, other = LiveCluster(tmp_path), some(), MemorySource(name="u")
    other.topic_id = OTHER_ID
    mirrored(live, source)
    ports = ports_of(live.cluster)
    with_ports(mirror, ports)(other, ["u"], ALL).raise_for_failures()

    def taken_away(command: AlterConfigs, *, dry_run: bool) -> object:
        if command.topic == "u":
            raise NoMajorityError("no voter answers")
        return submit(command, dry_run=dry_run)

    submit = ports.metadata.submit
    ports.metadata.submit = taken_away  # type: ignore[assignment, method-assign]
    report = end_mirror(ports.metadata, ports.execution, ["t", "u"])
    assert [row["topic"] for row in report.rows] == ["t"]
    assert [(failure.item, failure.code) for failure in report.failures] == [("u", "NO_MAJORITY")]


def test_a_wrong_throttle_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidCallError, match="would copy nothing"):
        MirrorOptions(throttle_bytes_per_s=0)


def test_a_mirror_next_to_another_one_makes_no_second_copy(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    other = live.driver()
    calls = iter(range(100))

    def between() -> None:
        if next(calls) in (0, 1):
            source.between, kept = lambda: None, source.between
            source.logs[0].append("more", gaps=1)
            with_ports(mirror, ports_of(other))(source, ["t"], ALL).raise_for_failures()
            source.between = kept

    source.between = between
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL).raise_for_failures()
    source.between = lambda: None
    mirrored(live, source)
    assert [value for _, value in seen(live)].count("more") == 2


def test_a_mirror_that_is_late_appends_nothing(tmp_path: Path) -> None:
    """Another piece already has that place, even if the late piece has the same records or more."""
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    image = live.cluster.image
    before = seen(live)
    for epoch, start in ((3, 7), (0, 0), (3, 20), (4, 3)):
        who = ProducerAppend("mirror", epoch, start, base_offset=start)
        rows = list(batches_of([], start, start + 2))
        with_ports(append_mirrored, ports_of(live.cluster))(image, image.topic("t"), 0, rows, who)
    assert seen(live) == before
    assert live.cluster.offsets("t", OffsetSpec.LATEST)[0] == FoundOffset(11, None, 1)


def test_a_topic_that_was_recreated_and_a_source_that_was_truncated_are_named(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    source.topic_id = OTHER_ID
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(f.item, f.code) for f in report.failures] == [("t", "INCONSISTENT_TOPIC_ID")]
    source.topic_id = TOPIC_ID
    source.logs[0].end = 8
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(f.item, f.code) for f in report.failures] == [("t-0", "LOG_TRUNCATION")]
    assert [row["partition"] for row in report.rows] == [1], "the others go on"


@pytest.mark.parametrize("later", [0, 20])
def test_an_unclean_election_there_is_found_however_long_the_log_has_become(later: int, tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    before = seen(live)
    source.logs[0].elect_unclean(8)
    source.logs[0].append(*"x" * later)
    source.logs[1].append("beside")
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(f.item, f.code) for f in report.failures] == [("t-0", "LOG_TRUNCATION")]
    assert seen(live) == before
    assert seen(live, 1) == [(0, "beside")]


def test_gaps_of_a_later_leader_behind_the_last_record_are_no_other_history(tmp_path: Path) -> None:
    """A transaction that was open when the leader changed ends under the next one, whose epoch no record shows."""
    live, source = LiveCluster(tmp_path), some()
    log = source.logs[0]
    log.epoch = 4
    log.append(gaps=2)
    mirrored(live, source)
    log.append("g")
    assert mirrored(live, source).rows[0]["leader_epoch"] == 4
    log.epoch = 5
    log.append(gaps=1)
    mirrored(live, source)
    log.elect_unclean(13)
    log.append(*"xyz")
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(f.item, f.code) for f in report.failures] == [("t-0", "LOG_TRUNCATION")]


def test_epochs_whose_records_the_source_has_deleted_are_not_checked(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    log = source.logs[0]
    log.epoch = 4
    log.append("g")
    log.start = 11
    mirrored(live, source)
    log.epoch = 5
    log.append(gaps=2)
    log.start = 12
    mirrored(live, source)
    log.append("h")
    assert mirrored(live, source).rows[0]["log_end"] == 15


def test_a_partition_without_a_leader_is_named_and_the_others_continue(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    source.logs[0].has_leader = False
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert {(f.item, f.code) for f in report.failures} == {
        ("t-0", "LEADER_NOT_AVAILABLE"),
        ("t", "LEADER_NOT_AVAILABLE"),
    }, "nobody knows where its log starts"
    source.logs[0].has_leader = True
    mirrored(live, source)
    source.logs[0].has_leader = False
    source.logs[1].append("a")
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(f.item, f.code) for f in report.failures] == [("t-0", "LEADER_NOT_AVAILABLE")]
    report = with_ports(compare, ports_of(live.cluster))(source, ["t"])
    assert [(f.item, f.code) for f in report.failures] == [("t-0", "LEADER_NOT_AVAILABLE")]
    assert seen(live, 1) == [(0, "a")]


def test_a_partition_whose_bounds_are_refused_stops_no_other(tmp_path: Path) -> None:
    """Its topic is deleted in the source while it is read."""
    live, source = LiveCluster(tmp_path), some()
    source.logs[1].append("a", "b", "c", "d")
    bounds, asked = source.bounds, list[list[TopicPartition]]()

    def refused(keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        asked.append(list(keys))
        if len(keys) == 1:
            raise UnknownTopicOrPartitionError("topic 't' of the source is not there")
        return bounds(keys)

    source.bounds = refused  # type: ignore[method-assign]
    source.between = lambda: setattr(source.logs[0], "start", 11)
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [("t", 0)] in asked
    assert [(failure.item, failure.code) for failure in report.failures] == [("t-0", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert [row["records"] for row in report.rows] == [0, 4]


def test_the_lag_behind_a_source_that_no_longer_answers_is_unknown(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    source.between = lambda: setattr(source.logs[0], "has_leader", False)
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL).raise_for_failures()
    assert [(row["log_end"], row["source_end"], row["lag"]) for row in report.rows] == [
        (11, None, None),
        (0, 0, 0),
    ]
    assert (report.totals["records"], report.totals["lag"]) == (7, None)

    def deleted() -> None:
        source.name = "other"
        source.bounds = refused  # type: ignore[method-assign]

    def refused(keys: object) -> Any:
        raise UnknownTopicOrPartitionError("topic 't' of the source is not there")

    source.logs[0].has_leader = True
    source.logs[0].append("g")
    source.between = deleted
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL)
    assert [(failure.item, failure.code) for failure in report.failures] == [
        ("source", "UNKNOWN_TOPIC_OR_PARTITION")
    ]
    assert [(row["records"], row["lag"]) for row in report.rows] == [(1, None), (0, None)]


@pytest.mark.parametrize("archive", [False, True])
def test_the_log_start_follows_the_source_or_stays(archive: bool, tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    options = MirrorOptions(replication_factor=3, archive=archive)
    mirrored(live, source, options)
    source.logs[0].start = 5
    source.logs[0].append("g")
    report = mirrored(live, source, options)
    assert report.rows[0]["log_start"] == (0 if archive else 5)
    assert live.cluster.offsets("t", OffsetSpec.EARLIEST)[0] == FoundOffset(0 if archive else 5, None, 1)
    source.logs[0].append("h", gaps=2)
    source.logs[0].start = source.logs[0].end - 1
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], options).raise_for_failures()
    assert [note for note in report.notes if "were deleted in the source" in note] == [
        "t-0: offsets [12, 14) were deleted in the source before they were mirrored, and are gaps here"
    ]
    assert seen(live, offset=14 if not archive else 11) == ([(11, "g")] if archive else [])


def test_records_that_were_read_before_retention_passed_them_are_here(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    calls = iter(range(100))

    def between() -> None:
        if next(calls) == 1:
            source.logs[0].start = 6

    source.between = between
    report = with_ports(mirror, ports_of(live.cluster))(
        source, ["t"], MirrorOptions(archive=True)
    ).raise_for_failures()
    assert seen(live) == [(0, "a"), (1, "b"), (4, "c"), (7, "d"), (8, "e"), (9, "f")], "but not the tombstone at 5"
    assert report.rows[0]["gaps"] == 5


def test_partitions_are_added_and_groups_come_along(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    source.groups = {"g": {("t", 0): OffsetAndMetadata(8, 3, "m"), ("t", 1): OffsetAndMetadata(100)}}
    report = mirrored(live, source)
    assert report.totals["group_offsets"] == 1
    assert live.cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(8, None, "m")}
    live.cluster.groups.commit("g", {("t", 0): 9})
    source.logs.append(MemoryLog())
    source.logs[2].append("z")
    report = mirrored(live, source)
    assert "t: the source has 3 partitions now" in report.notes
    assert seen(live, 2) == [(0, "z")]
    assert live.cluster.groups.committed("g")["t", 0].offset == 9, "its readers are here by now"


def test_configs_that_mean_the_same_come_along(tmp_path: Path) -> None:
    def configs(**there: str) -> dict[str, str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        live = LiveCluster(folder)
        source = MemorySource(1, **{key.replace("_", "."): value for key, value in there.items()})
        with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL).raise_for_failures()
        return dict(live.cluster.image.topic("t").configs)

    always: dict[str, Any] = {
        "mirror.source": f"kafka-1/{TOPIC_ID}",
        "partitioner": "murmur2",
        "message.timestamp.type": "CreateTime",
    }
    kept = {"retention.ms": "1000", "retention.bytes": "-1", "segment.ms": "60000", "compression.type": "gzip"}
    theirs = {key.replace(".", "_"): value for key, value in kept.items()}
    assert configs(cleanup_policy="delete", max_message_bytes="7", **theirs) == {**kept, **always}
    nothing_goes = {**kept, **always, "retention.ms": "-1"}
    assert configs(cleanup_policy="", **theirs) == nothing_goes, "an empty list (KIP-1161)"
    lags = {
        "delete.retention.ms": "5",
        "max.compaction.lag.ms": str(2**63 - 1),
        "min.cleanable.dirty.ratio": "0.25",
        "min.compaction.lag.ms": "4",
    }
    theirs |= {key.replace(".", "_"): value for key, value in lags.items()}
    assert configs(cleanup_policy="delete", **theirs) == {**kept, **always}
    compacted = {**nothing_goes, **lags}
    assert configs(cleanup_policy="compact", **theirs) == {**compacted, "cleanup.policy": "compact"}
    for policy in ("compact,delete", "delete, compact"):
        wanted = {**kept, **always, **lags, "cleanup.policy": "compact,delete"}
        assert configs(cleanup_policy=policy, **theirs) == wanted


def test_compare_names_each_difference_by_its_offset(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    log = source.logs[0]
    log.records[1] = log.records[1]._replace(headers=[("h", b"x")])
    del log.records[5]
    log.append("not yet")
    report = with_ports(compare, ports_of(live.cluster))(source, ["t"])
    text = (
        "offsets that differ: 1 is another record, 5 is only here, "
        "11 and all later ones up to 12 are only in Kafka"
    )
    assert [(f.item, f.code, f.message) for f in report.failures] == [("t-0", "RECORDS_DIFFER", text)]
    source.configs = {"cleanup.policy": "compact"}
    log.records.pop(1)
    assert with_ports(compare, ports_of(live.cluster))(source, ["t"]).rows[0]["compacted"] == 2


def test_it_is_throttled_and_stops_at_its_budget(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), MemorySource()
    source.records_a_read = 1
    for epoch in range(6):  # one piece per epoch
        source.logs[0].epoch = epoch
        source.logs[0].append("x" * 1000)
    began = live.clock.now_ms()
    report = with_ports(mirror, ports_of(live.cluster))(
        source, ["t"], MirrorOptions(throttle_bytes_per_s=1000, budget_s=2.5)
    )
    assert live.clock.now_ms() - began >= 2500
    assert 0 < int(report.totals["lag"] or 0) < 6
    assert float(report.totals["left_s"] or 0) > 0
    mirrored(live, source)
    assert len(seen(live)) == 6


def test_without_confluent_kafka_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    asked = ["--cluster", str(live.file), "--from", "localhost:1", "t"]
    assert job(asked) == 2
    assert "pip install 'stratalog[kafka]'" in capsys.readouterr().err
    assert job([*asked[:2], "--end", "t"]) == 2
    assert "give --yes" in capsys.readouterr().err
    assert job([*asked[:2], "--end", "t", "--yes"]) == 2
    assert "UNKNOWN_TOPIC_OR_PARTITION" in capsys.readouterr().err


@pytest.mark.slow
def test_partitions_with_much_to_read_are_shared_by_several_readers(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), MemorySource(3)
    for number, log in enumerate(source.logs):
        log.append(*"abc", gaps=60_000 * (number + 1))
        log.append("end")
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL).raise_for_failures()
    assert sorted(source.asked) == [[0], [1], [2]]
    assert [(row["records"], row["lag"]) for row in report.rows] == [(4, 0)] * 3
    source.logs[0].append("few")
    source.logs[2].append("more")
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], ALL).raise_for_failures()
    assert source.asked[3:] == [[0, 2]], "one reader is enough"
    equal(live, source)
