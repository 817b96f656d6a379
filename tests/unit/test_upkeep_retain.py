"""Retention over both tiers on a whole cluster (KIP-405, "Log retention"; KIP-950)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.upkeep.retention.remote import Expiry
from stratalog.partitions.errors import InvalidConfigError
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.segments import reader as segment
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, remote_files, rows_of
from tests.unit.faulty_store import Faults
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed, lying
from tests.unit.retention_harness import filled, local_start, retained

HOUR_MS = 3_600_000
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
READ_ONLY = {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}


# ------------------------------------------------------------------------------------- the cost


@pytest.mark.slow
def test_a_driver_that_has_just_started_reads_as_much_however_long_the_logs_are(live: LiveCluster) -> None:
    """Kafka's retention checks the oldest segments until one stays."""
    live.topic(retention_ms=str(HOUR_MS))

    def read() -> int:
        return sum(live.store(broker).counts.reads for broker in (1, 2, 3))

    def read_by_a_new_driver() -> int:
        driver = live.driver()
        segment.forget()
        before = read()
        driver.retain("t").raise_for_failures()
        return read() - before

    live.fill("abcde", at_ms=live.clock.now_ms())
    few = read_by_a_new_driver()
    live.fill("abcde" * 10, at_ms=live.clock.now_ms())
    assert read_by_a_new_driver() <= few
    assert live.read() == {0: list("abcde" * 11)}


# ------------------------------------------------------------------------------------- the limits


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("ages_h", "configs", "log_start", "local"),
    [
        pytest.param((5, 4, 3, 2, 0), {}, 0, 0, id="no limit"),
        pytest.param((5, 4, 3, 2, 0), {"retention.ms": "3.5"}, 2, 2, id="total by time, local as total"),
        pytest.param(
            (5, 4, 3, 2, 0), {"retention.ms": "4.5", "local.retention.ms": "2.5"}, 1, 3, id="both by time"
        ),
        pytest.param((5, 4, 3, 2, 0), {"local.retention.ms": "0"}, 0, 4, id="local by time: the active one stays"),
        pytest.param((5, 4, 3, 2, 0), {"retention.bytes": "2"}, 3, 3, id="total by size, local as total"),
        pytest.param((5, 4, 3, 2, 0), {"retention.bytes": "3", "local.retention.bytes": "1"}, 2, 4, id="by size"),
        pytest.param(
            (5, 4, 3, 2, 0), {"retention.bytes": "3", "retention.ms": "2.5"}, 3, 3, id="whichever is less"
        ),
        pytest.param((5, 4, 3, 2, 0), {"retention.ms": "0"}, 4, 4, id="the active segment stays"),
        pytest.param((5, -9, 0, 0, 0), {"retention.ms": "0.5"}, 1, 1, id="written just now, whatever it says"),
        pytest.param((-9, -9, 0), {"retention.bytes": "1"}, 2, 2, id="the future does not count for size"),
    ],
)
@pytest.mark.parametrize("dropped_before", [pytest.param(False, marks=pytest.mark.slow), True])
def test_retention_sees_one_log_in_both_tiers(
    live: LiveCluster,
    ages_h: tuple[float, ...],
    configs: dict[str, str],
    log_start: int,
    local: int,
    dropped_before: bool,
) -> None:
    """KIP-405, RLM task, step 1: "If any of the remote segments are older than the configured remote log retention
    time, delete the segment from remote storage". The result is the same whether the oldest segments are only in
    the remote tier or also on the brokers.
    """
    now = live.clock.now_ms()
    live.tiered(local_retention_bytes="-2")
    for number, hours in enumerate(ages_h):
        live.append([f"{number}"], at_ms=int(now - hours * HOUR_MS)).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    if dropped_before:
        live.cluster.topics.alter_configs("t", {"local.retention.bytes": str(2 * size_of_one(live))})
        retained(live)
        assert local_start(live) == len(ages_h) - 2
        local = max(local, len(ages_h) - 2)
    unit = {"ms": HOUR_MS, "bytes": size_of_one(live)}
    texts = {key: str(int(float(value) * unit[key.rpartition(".")[2]])) for key, value in configs.items()}
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "-2", **texts})
    report = retained(live)
    assert live.replicas().view.log_start_offset == log_start
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [local] * 3
    assert live.read() == {0: [f"{number}" for number in range(log_start, len(ages_h))]}
    assert len(lying(live)) == len(ages_h) - log_start
    assert_tables_and_folders_agree(live)
    assert [note for note in report.notes if "future" not in note] == []


def size_of_one(live: LiveCluster) -> int:
    """A size just below that of the smallest segment; all segments have one record, and nearly equal sizes."""
    return min(path.stat().st_size for path in remote_files(live)) - 10


@pytest.mark.slow
def test_every_file_that_is_counted_has_its_bytes_counted(live: LiveCluster) -> None:
    """Registers are deleted too; they have no records, and are not counted. A run without files reports none."""
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    sizes = {name: len(data) for name, data in live.on_brokers().items() if "/t-" in name}
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        report = live.cluster.retain().raise_for_failures()
        left = live.on_brokers()
        gone = {name for name in sizes if name not in left and name.endswith(".parquet")}
        wanted = (len(gone), sum(sizes.pop(name) for name in gone))
        seen.append((int(str(report.totals["deleted_files"])), int(str(report.totals["deleted_bytes"]))))
        assert seen[-1] == wanted
    assert seen[0] == (0, 0)
    assert seen[1][0] > 0
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    sizes_there = {path: Path(path).stat().st_size for path in live.in_remote() if path.endswith(".parquet")}
    (row,) = live.cluster.retain().raise_for_failures().rows
    gone_there = set(sizes_there) - set(live.in_remote())
    assert (row["remote_removed"], row["remote_removed_bytes"]) == (
        2,
        sum(map(sizes_there.__getitem__, gone_there)),
    )


@pytest.mark.slow
def test_a_timestamp_in_the_future_does_not_keep_the_log_forever(live: LiveCluster) -> None:
    """In Kafka a segment with such a timestamp stays until that time, and so do all later segments. Here its age
    is that of the file, and the report says so.
    """
    now = live.clock.now_ms()
    live.tiered(retention_ms=str(HOUR_MS))
    live.append(["a"], at_ms=now + 1000 * HOUR_MS).raise_for_failures()
    live.fill("bc", at_ms=now)
    live.cluster.tier().raise_for_failures()
    report = live.cluster.retain().raise_for_failures()
    assert "t-0: offsets [0, 1) have a timestamp in the future" in report.notes[0]
    assert live.replicas().view.log_start_offset == 0
    live.clock.advance_ms(2 * HOUR_MS)
    live.cluster.retain().raise_for_failures()
    assert live.replicas().view.log_start_offset == 3
    assert live.cluster.retain().raise_for_failures().notes == []


def test_a_timestamp_after_the_year_9999_stops_no_retention(live: LiveCluster) -> None:
    """The timestamp is in milliseconds instead of seconds: Python's calendar ends before such a time."""
    live.topic(retention_ms=str(HOUR_MS))
    live.append(["a"], at_ms=1_700_000_000_000_000).raise_for_failures()
    report = live.cluster.retain().raise_for_failures()
    assert "have a timestamp in the future, 1700000000000000 ms after 1970;" in report.notes[0]


@pytest.mark.slow
def test_a_remote_segment_of_which_a_part_is_below_the_log_start_stays(live: LiveCluster) -> None:
    """Files are never cut for retention: readers skip the records below. A file is deleted once all of it is below
    the log start.
    """
    live.tiered(segment_bytes="1000000", segment_ms="60000")
    live.fill("abc")
    live.clock.advance_ms(120_000)
    live.cluster.tier().raise_for_failures()
    live.fill("d")
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    retained(live)
    assert (len(listed(live)), local_start(live)) == (1, 3)
    assert live.read() == {0: ["c", "d"]}
    live.cluster.verify(deep=True).raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    retained(live)
    assert listed(live) == set()
    assert live.read() == {0: ["d"]}


def test_a_log_start_that_is_refused_is_a_failure_of_its_partition_by_its_name(tmp_path: Path) -> None:
    """Another leader was elected between the look and the commit: FENCED_LEADER_EPOCH."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(retention_bytes="1")
    live.fill("abc")
    other, heir = live.driver(), live.followers()[0]

    faults.once(lambda: other.elect("t", leader=heir).raise_for_failures(), "create", of=METADATA_TOPIC)
    assert [(one.item, one.code) for one in live.cluster.retain(check=False).failures] == [
        ("t-0", "FENCED_LEADER_EPOCH")
    ]


@pytest.mark.parametrize(
    "configs",
    [
        {"retention.ms": "1000", "local.retention.ms": "1001"},
        {"retention.ms": "1000", "local.retention.ms": "-1"},
        {"retention.bytes": "1000", "local.retention.bytes": "1001"},
        {"retention.bytes": "1000", "local.retention.bytes": "-1"},
        {"remote.log.copy.disable": "true", "local.retention.bytes": "7"},
        {"remote.log.copy.disable": "true", "local.retention.bytes": "-2", "local.retention.ms": "7"},
    ],
    ids=lambda configs: " ".join(f"{key}={value}" for key, value in configs.items()),
)
def test_limits_that_contradict_each_other_are_refused_and_nothing_is_changed(
    live: LiveCluster, configs: dict[str, str]
) -> None:
    live.tiered()
    before = live.cluster.image.topic("t").configs
    with pytest.raises(InvalidConfigError, match=r"local\.retention"):
        live.cluster.topics.alter_configs("t", configs)
    assert live.cluster.image.topic("t").configs == before


# ------------------------------------------------------------------- tiering on and off (KIP-950)


@pytest.mark.slow
def test_copying_may_be_stopped_and_what_is_remote_is_kept_and_read(live: LiveCluster) -> None:
    """KIP-950: remote.log.copy.disable."""
    filled(live, "abcd")
    retained(live)
    live.cluster.topics.alter_configs("t", READ_ONLY)
    live.fill("ef")
    assert live.cluster.tier().raise_for_failures().rows == []
    retained(live)
    assert (len(listed(live)), local_start(live)) == (4, 3)
    assert live.read() == {0: list("abcdef")}
    live.cluster.topics.alter_configs("t", {"retention.bytes": str(4 * size_of_one(live))})
    retained(live)
    assert live.read() == {0: list("cdef")}
    assert len(listed(live)) == 2, "what is remote still expires"
    live.cluster.topics.alter_configs("t", {"remote.log.copy.disable": None, "retention.bytes": None})
    live.cluster.tier().raise_for_failures()
    assert len(listed(live)) == 4
    assert_tables_and_folders_agree(live)


def test_tiering_is_not_switched_off_without_saying_what_becomes_of_the_remote_data(live: LiveCluster) -> None:
    live.tiered()
    with pytest.raises(InvalidConfigError, match=r"remote.log.copy.disable = true; to delete the data"):
        live.cluster.topics.alter_configs("t", {"remote.storage.enable": "false"})
    with pytest.raises(InvalidConfigError, match="cannot be switched off"):
        live.cluster.topics.alter_configs("t", {"remote.storage.enable": None})


def test_tiering_cannot_be_switched_off_by_a_default_of_the_cluster(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs(None, {"remote.storage.enable": "true"})
    live.topic()
    with pytest.raises(InvalidConfigError, match=r"topic 't'.*cannot be switched off"):
        live.cluster.topics.alter_configs(None, {"remote.storage.enable": None})


def test_tiering_switched_off_gives_the_remote_data_up(live: LiveCluster) -> None:
    """KIP-950: the log starts where the leader's storage does; then all remote segments are deleted."""
    filled(live, "abcd")
    retained(live)
    assert local_start(live) == 3
    live.cluster.topics.alter_configs("t", OFF)
    assert rows_of(live.cluster.retain(dry_run=True), "log_start", "remote_removed") == [(3, 4)]
    assert rows_of(live.cluster.retain(), "log_start", "remote_removed") == [(3, 4)]
    assert live.read() == {0: ["d"]}
    assert listed(live) == set()
    assert_tables_and_folders_agree(live)
    live.cluster.verify().raise_for_failures()


@pytest.mark.slow
def test_switched_on_again_a_topic_is_tiered_from_its_start(live: LiveCluster) -> None:
    """If a topic is tiered late, or again, all sealed records of the log are copied."""
    live.topic(segment_bytes="1", file_delete_delay_ms="0")
    live.fill("abc")
    on = {"remote.storage.enable": "true", "local.retention.bytes": "0"}
    live.cluster.topics.alter_configs("t", on)
    live.cluster.tier().raise_for_failures()
    retained(live)
    assert (len(listed(live)), local_start(live)) == (3, 2)
    live.cluster.topics.alter_configs("t", OFF)
    retained(live)
    live.fill("de")
    live.cluster.topics.alter_configs("t", on)
    live.cluster.tier().raise_for_failures()
    retained(live)
    assert (len(listed(live)), local_start(live)) == (3, 4)
    assert live.read() == {0: list("cde")}
    assert_tables_and_folders_agree(live)


@pytest.mark.slow
def test_while_a_partition_has_no_leader_its_remote_data_stays(tmp_path: Path) -> None:
    """The start of the log would be unknown without the remote data."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered(copies=1)
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    retained(live)
    live.cluster.topics.alter_configs("t", OFF)
    leader = live.leader()
    if leader == 1:
        live.cluster.reassign({("t", 0): [2]}).raise_for_failures()
        leader = live.leader()
    with live.unreachable(leader):
        live.cluster.retain(check=False)
        assert len(listed(live)) == 4
    retained(live)
    assert listed(live) == set()


def test_a_zombie_that_gives_up_what_is_tiered_again_changes_nothing(live: LiveCluster) -> None:
    """The zombie read that tiering was off; since then it was enabled again, and brokers rely on the
    remote data.
    """
    filled(live, "abcd")
    live.cluster.topics.alter_configs("t", OFF)
    zombie = live.driver()
    stale = zombie.image
    live.cluster.topics.alter_configs("t", {"remote.storage.enable": "true"})
    retained(live)
    topic = stale.topic("t")
    run = OperationRun("retain")
    with_ports(Expiry, ports_of(zombie))(stale, {}, {(topic.topic_id, 0)}, run).run([topic])  # type: ignore[arg-type]
    assert (len(listed(live)), run.failures) == (4, [])
    assert live.read() == {0: list("abcd")}
