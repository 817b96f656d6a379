"""Retention over both tiers on a whole cluster (KIP-405, "Log retention"; KIP-950)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from engine.operations.reading.look import remote_pieces
from engine.operations.retention.remote import Expiry
from engine.report import Report
from partitions.errors import InvalidConfigError
from partitions.lineage import Lineage
from partitions.listing import DataFile
from partitions.paths import METADATA_TOPIC, DataName, base_name, parse_name
from partitions.segment import Segment
from partitions.store import Store
from partitions.store.local import LocalStore
from partitions.store.memory import MemoryStore
from tests.unit.cluster_harness import Dying, LiveCluster, codes, rows_of, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed, lying
from tests.unit.tampering import spot
from tests.unit.tiering_harness import segment, table_in, uploaded
from tiering import remote_file
from tiering.divergence import Histories
from tiering.remote_segment import RemoteSegment

HOUR_MS = 3_600_000
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
READ_ONLY = {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return LiveCluster(tmp_path)


def remote_files(live: LiveCluster) -> list[Path]:
    return sorted(live.remote.glob("*/0/*.parquet"))


def local_start(live: LiveCluster, broker: int | None = None) -> int:
    return live.log(live.leader() if broker is None else broker).local_start


def filled(live: LiveCluster, values: str, **configs: str) -> None:
    """A topic of which all is tiered, one segment a value."""
    live.tiered(**configs)
    live.fill(values)
    live.cluster.tier().raise_for_failures()


def retained(live: LiveCluster) -> Report:
    """Twice: local starts first, then what lies below them."""
    live.cluster.retain().raise_for_failures()
    return live.cluster.retain().raise_for_failures()


# ------------------------------------------------------------------------------------- the limits


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
    time, delete the segment from remote storage". The same whether the oldest segments are in the remote tier
    alone or on the brokers too."""
    now = live.clock.now_ms()
    live.tiered(local_retention_bytes="-2")
    for number, hours in enumerate(ages_h):
        live.append([f"{number}"], at_ms=int(now - hours * HOUR_MS)).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    if dropped_before:
        live.cluster.alter_configs("t", {"local.retention.bytes": str(2 * size_of_one(live))})
        retained(live)
        assert local_start(live) == len(ages_h) - 2
        local = max(local, len(ages_h) - 2)
    unit = {"ms": HOUR_MS, "bytes": size_of_one(live)}
    texts = {key: str(int(float(value) * unit[key.rpartition(".")[2]])) for key, value in configs.items()}
    live.cluster.alter_configs("t", {"local.retention.bytes": "-2", **texts})
    report = retained(live)
    assert live.site().view.log_start_offset == log_start
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [local] * 3
    assert live.read() == {0: [f"{number}" for number in range(log_start, len(ages_h))]}
    assert len(lying(live)) == len(ages_h) - log_start
    assert_tables_and_folders_agree(live)
    assert [note for note in report.notes if "future" not in note] == []


def size_of_one(live: LiveCluster) -> int:
    """All segments hold one record, and are of nearly one size: a bit below the smallest one."""
    return min(path.stat().st_size for path in remote_files(live)) - 10


def test_every_file_that_is_counted_has_its_bytes_counted(live: LiveCluster) -> None:
    """Registers go too; they hold no records, and are not counted. Nor does a run without files say there are."""
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
    live.cluster.delete_records("t", {0: 2}).raise_for_failures()
    sizes_there = {path: Path(path).stat().st_size for path in live.in_remote() if path.endswith(".parquet")}
    (row,) = live.cluster.retain().raise_for_failures().rows
    gone_there = set(sizes_there) - set(live.in_remote())
    assert (row["remote_removed"], row["remote_removed_bytes"]) == (
        2,
        sum(map(sizes_there.__getitem__, gone_there)),
    )


def test_a_timestamp_in_the_future_does_not_keep_the_log_for_ever(live: LiveCluster) -> None:
    """In Kafka a segment with one stays until then, and all that comes after it. Here its age is that of the
    file; whoever runs retain is told."""
    now = live.clock.now_ms()
    live.tiered(retention_ms=str(HOUR_MS))
    live.append(["a"], at_ms=now + 1000 * HOUR_MS).raise_for_failures()
    live.fill("bc", at_ms=now)
    live.cluster.tier().raise_for_failures()
    report = live.cluster.retain().raise_for_failures()
    assert "t-0: offsets [0, 1) have a timestamp in the future" in report.notes[0]
    assert live.site().view.log_start_offset == 0
    live.clock.advance_ms(2 * HOUR_MS)
    live.cluster.retain().raise_for_failures()
    assert live.site().view.log_start_offset == 3
    assert live.cluster.retain().raise_for_failures().notes == []


def test_a_timestamp_after_the_year_9999_stops_no_retention(live: LiveCluster) -> None:
    """Milliseconds taken for seconds: Python's calendar ends before."""
    live.topic(retention_ms=str(HOUR_MS))
    live.append(["a"], at_ms=1_700_000_000_000_000).raise_for_failures()
    report = live.cluster.retain().raise_for_failures()
    assert "have a timestamp in the future, 1700000000000000 ms after 1970;" in report.notes[0]


def test_a_remote_segment_of_which_a_part_is_below_the_log_start_stays(live: LiveCluster) -> None:
    """Files are never cut for retention: readers skip what lies below. It goes once all of it is below."""
    live.tiered(segment_bytes="1000000", segment_ms="60000")
    live.fill("abc")
    live.clock.advance_ms(120_000)
    live.cluster.tier().raise_for_failures()
    live.fill("d")
    live.cluster.delete_records("t", {0: 2}).raise_for_failures()
    retained(live)
    assert (len(listed(live)), local_start(live)) == (1, 3)
    assert live.read() == {0: ["c", "d"]}
    live.cluster.verify(deep=True).raise_for_failures()
    live.cluster.delete_records("t", {0: 3}).raise_for_failures()
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

    def elect_before_the_commit(uri: str, what: str, name: str) -> None:
        if what == "create" and METADATA_TOPIC in name:
            faults.none()
            other.elect("t", leader=heir).raise_for_failures()

    faults.before = elect_before_the_commit
    assert [(one.item, one.code) for one in live.cluster.retain().failures] == [("t-0", "FENCED_LEADER_EPOCH")]


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
        live.cluster.alter_configs("t", configs)
    assert live.cluster.image.topic("t").configs == before


# ----------------------------------------------------------- nothing leaves before it is safe


def test_a_segment_is_read_back_once_when_it_is_first_relied_upon(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = remote_file.verify_bytes

    def counted(store: Store, file: DataFile) -> Segment:
        asked.append(str(file.name))
        return real(store, file)

    monkeypatch.setattr(remote_file, "verify_bytes", counted)
    filled(live, "abcd")
    for _ in range(3):
        live.cluster.retain().raise_for_failures()
    assert local_start(live) == 3
    assert sorted(asked) == [f"{at:020d}.{1:010d}.parquet" for at in range(3)], "once for all replicas and runs"


def test_one_bit_of_an_object_that_looks_as_it_was_keeps_the_brokers_from_letting_go(live: LiveCluster) -> None:
    """Name, size, time, and footer are what they were: only who reads all of it finds out. heal mends it, from
    what the brokers still have."""
    filled(live, "abcd")
    second = remote_files(live)[1]
    before = second.stat()
    content = bytearray(second.read_bytes())
    content[40] ^= 1
    second.write_bytes(content)
    os.utime(second, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert second.name in the_failure(live.cluster.retain())
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [1, 1, 1]
    live.cluster.heal().raise_for_failures()
    retained(live)
    assert local_start(live) == 3
    assert live.read() == {0: list("abcd")}


def test_an_object_that_goes_bad_while_the_delay_passes_keeps_what_lies_on_the_brokers(live: LiveCluster) -> None:
    filled(live, "abcd", file_delete_delay_ms="3600000")
    live.cluster.retain().raise_for_failures()
    assert local_start(live) == 3
    second = remote_files(live)[1]
    content = bytearray(second.read_bytes())
    content[40] ^= 1
    second.write_bytes(content)
    live.clock.advance_ms(2 * 3600_000)
    before = live.on_brokers()
    assert second.name in the_failure(live.driver().retain())
    gone = {base_name(name) for name in before.keys() - live.on_brokers().keys() if "/t-" in name}
    assert gone == {f"{2:020d}.{1:010d}.parquet"}, "what lies behind it may go"
    live.driver().heal().raise_for_failures()
    live.driver().retain().raise_for_failures()
    assert live.read() == {0: list("abcd")}


def test_what_a_merge_has_hidden_goes_once_the_segment_was_read_on_that_replica(live: LiveCluster) -> None:
    live.topic(segment_bytes="1000000", segment_merge_min_files="2", file_delete_delay_ms="0")
    live.fill("abcd")
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    spot(live, 2, 0).flip(40)
    for _ in range(2):
        assert "t-0 on broker 2: CORRUPT_SEGMENT" in the_failure(live.driver().retain())
    assert [len(live.log(broker).listing.data) for broker in (1, 2, 3)] == [1, 5, 1]
    live.driver().heal().raise_for_failures()
    live.driver().retain().raise_for_failures()
    assert [len(live.log(broker).listing.data) for broker in (1, 2, 3)] == [1, 1, 1]
    assert live.read() == {0: list("abcd")}


def test_an_object_that_was_replaced_by_a_faithful_copy_is_read_whole_and_relied_upon(live: LiveCluster) -> None:
    """A bucket that was copied: every object has another time. Its checksums hold."""
    filled(live, "abcd")
    for path in remote_files(live):
        os.utime(path, (1, 1))
    retained(live)
    assert local_start(live) == 3
    assert live.read() == {0: list("abcd")}


def test_an_object_that_was_replaced_by_other_bytes_is_named_and_never_relied_upon(live: LiveCluster) -> None:
    """Bad input: "a truncated or replaced object". Same name, same size, a good footer: only a page differs."""
    filled(live, "abcd")
    second = remote_files(live)[1]
    content = bytearray(second.read_bytes())
    column = pq.read_metadata(second).row_group(0).column(2)
    content[column.data_page_offset + 40] ^= 0xFF
    second.write_bytes(content)
    os.utime(second, (1, 1))
    for _ in range(2):
        report = live.cluster.retain()
        assert set(codes(report)) == {"CORRUPT_SEGMENT"}
        assert second.name in the_failure(report)
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [1, 1, 1]
    assert live.read() == {0: list("abcd")}


def test_a_damaged_footer_is_found_although_size_and_time_are_as_they_were(live: LiveCluster) -> None:
    filled(live, "abcd")
    second = remote_files(live)[1]
    before = second.stat()
    content = bytearray(second.read_bytes())
    content[-200] ^= 0xFF
    second.write_bytes(content)
    os.utime(second, ns=(before.st_atime_ns, before.st_mtime_ns))
    report = live.cluster.retain()
    assert second.name in the_failure(report)
    assert local_start(live) == 1


def test_files_stay_on_the_brokers_when_their_remote_copy_goes_during_the_delay(live: LiveCluster) -> None:
    """Between the new local start and the deletion, file.delete.delay.ms later, somebody removes the remote."""
    filled(live, "abcd", file_delete_delay_ms="60000")
    live.cluster.retain().raise_for_failures()
    assert (local_start(live), len(live.log(1).listing.data)) == (3, 4)
    for path in remote_files(live):
        path.unlink()
    live.clock.advance_ms(120_000)
    assert codes(live.cluster.retain()) == {"REMOTE_OBJECT_MISSING": 1}
    assert len(live.log(1).listing.data) == 4


def late_commit_of_a_lost_history(live: LiveCluster) -> None:
    """What a driver does that asked who leads, was held up, and puts its version after an unclean election."""
    topic = live.cluster.image.topic("t")
    uploads = []
    for path in remote_files(live)[2:]:
        name = parse_name(path.name)
        assert isinstance(name, DataName)
        lost = RemoteSegment(0, name, name.base_offset + 1, path.stat().st_size)
        uploads.append(replace(uploaded(lost), modified_ms=path.stat().st_mtime_ns // 1_000_000))
    table = table_in(LocalStore(str(live.remote)), topic_id=topic.topic_id)
    epoch = uploads[0].segment.epoch
    table.commit(uploads, (), Histories({0: Lineage([(epoch, 0)])}, lambda: {0: epoch}))


def test_what_an_unclean_election_has_lost_counts_for_nothing(tmp_path: Path) -> None:
    """Broker 3 was away when broker 2 appended, and leads now. Remote segments of what it never had are not of its
    history: no reader sees them, it lets go of nothing for them, and the next tier run takes them out."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered(local_retention_bytes="-2")
    live.cluster.reassign({("t", 0): [2, 3]}).raise_for_failures()
    live.fill("ab")
    live.cluster.tier().raise_for_failures()
    with live.unreachable(3):
        live.cluster.fence([3])
        live.fill("cdef")
    with pytest.raises(KeyboardInterrupt):
        live.driver(progress=Dying()).tier()
    with live.unreachable(2):
        live.cluster.fence([2], force=True)
        live.cluster.unfence([3])
        live.cluster.elect(["t"], unclean=True).raise_for_failures()
        live.fill("xyz")
        late_commit_of_a_lost_history(live)
        assert len(listed(live)) == 6
        live.cluster.alter_configs("t", {"local.retention.bytes": "0"})
        for _ in range(2):
            live.cluster.retain(["t"]).raise_for_failures()
        assert local_start(live, 3) == 2
        assert live.read() == {0: list("abxyz")}
        report = live.cluster.tier().raise_for_failures()
        assert "an unclean election has lost" in " ".join(report.notes)
        assert len(listed(live)) == 5
        for _ in range(2):
            live.cluster.retain(["t"]).raise_for_failures()
        assert local_start(live, 3) == 4
        assert live.read() == {0: list("abxyz")}
        live.cluster.vacuum(["t"]).raise_for_failures()
        assert_tables_and_folders_agree(live)


def test_readers_are_given_no_more_than_the_leaders_history_has() -> None:
    segments = [segment(0, 10), segment(10, 20, epoch=3)]
    for lineage, ends in (([(1, 0), (3, 10)], [10, 20]), ([(1, 0), (5, 10)], [10]), ([(1, 0), (5, 7)], [7])):
        pieces = remote_pieces(MemoryStore(), "t", segments, Lineage(lineage))
        assert [piece.end for piece in pieces] == ends[: len(pieces)] == ends


def test_a_remote_log_that_lacks_the_beginning_of_the_log_counts_for_nothing(live: LiveCluster) -> None:
    """A batch was lost, and the next one committed to an empty table: what lies before is only on the brokers."""
    filled(live, "abcd")
    topic = live.cluster.image.topic("t")
    table = table_in(LocalStore(str(live.remote)), topic_id=topic.topic_id)
    table.commit((), table.load().of_partition(0)[:1])
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [0, 0, 0]
    assert "the log starts at offset 0, the remote log at 1" in str(live.cluster.verify().failures)
    assert live.read() == {0: list("abcd")}


# ------------------------------------------------------------------- tiering on and off (KIP-950)


def test_copying_may_be_stopped_and_what_is_remote_is_kept_and_read(live: LiveCluster) -> None:
    """KIP-950: remote.log.copy.disable."""
    filled(live, "abcd")
    retained(live)
    live.cluster.alter_configs("t", READ_ONLY)
    live.fill("ef")
    assert live.cluster.tier().raise_for_failures().rows == []
    retained(live)
    assert (len(listed(live)), local_start(live)) == (4, 3)
    assert live.read() == {0: list("abcdef")}
    live.cluster.alter_configs("t", {"retention.bytes": str(4 * size_of_one(live))})
    retained(live)
    assert live.read() == {0: list("cdef")}
    assert len(listed(live)) == 2, "what is remote still expires"
    live.cluster.alter_configs("t", {"remote.log.copy.disable": None, "retention.bytes": None})
    live.cluster.tier().raise_for_failures()
    assert len(listed(live)) == 4
    assert_tables_and_folders_agree(live)


def test_tiering_is_not_switched_off_without_saying_what_becomes_of_the_remote_data(live: LiveCluster) -> None:
    live.tiered()
    with pytest.raises(InvalidConfigError, match=r"remote.log.copy.disable = true; to delete it"):
        live.cluster.alter_configs("t", {"remote.storage.enable": "false"})
    with pytest.raises(InvalidConfigError, match="cannot be switched off"):
        live.cluster.alter_configs("t", {"remote.storage.enable": None})


def test_nor_by_a_default_of_the_cluster(live: LiveCluster) -> None:
    live.cluster.alter_configs(None, {"remote.storage.enable": "true"})
    live.topic()
    with pytest.raises(InvalidConfigError, match=r"topic 't'.*cannot be switched off"):
        live.cluster.alter_configs(None, {"remote.storage.enable": None})


def test_tiering_switched_off_gives_the_remote_data_up(live: LiveCluster) -> None:
    """KIP-950: the log starts where the leader's storage does; then all that is remote goes."""
    filled(live, "abcd")
    retained(live)
    assert local_start(live) == 3
    live.cluster.alter_configs("t", OFF)
    assert rows_of(live.cluster.retain(dry_run=True), "log_start", "remote_removed") == [(3, 4)]
    assert rows_of(live.cluster.retain(), "log_start", "remote_removed") == [(3, 4)]
    assert live.read() == {0: ["d"]}
    assert listed(live) == set()
    assert_tables_and_folders_agree(live)
    live.cluster.verify().raise_for_failures()


def test_switched_on_again_a_topic_is_tiered_from_its_start(live: LiveCluster) -> None:
    """A topic that is tiered late, or again: all that the log has is copied, as far as it is sealed."""
    live.topic(segment_bytes="1", file_delete_delay_ms="0")
    live.fill("abc")
    on = {"remote.storage.enable": "true", "local.retention.bytes": "0"}
    live.cluster.alter_configs("t", on)
    live.cluster.tier().raise_for_failures()
    retained(live)
    assert (len(listed(live)), local_start(live)) == (3, 2)
    live.cluster.alter_configs("t", OFF)
    retained(live)
    live.fill("de")
    live.cluster.alter_configs("t", on)
    live.cluster.tier().raise_for_failures()
    retained(live)
    assert (len(listed(live)), local_start(live)) == (3, 4)
    assert live.read() == {0: list("cde")}
    assert_tables_and_folders_agree(live)


def test_while_a_partition_has_no_leader_its_remote_data_stays(tmp_path: Path) -> None:
    """Nobody could say where its log would start without it."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered(copies=1)
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    retained(live)
    live.cluster.alter_configs("t", OFF)
    leader = live.leader()
    if leader == 1:
        live.cluster.reassign({("t", 0): [2]}).raise_for_failures()
        leader = live.leader()
    with live.unreachable(leader):
        live.cluster.retain()
        assert len(listed(live)) == 4
    retained(live)
    assert listed(live) == set()


def test_a_zombie_that_gives_up_what_is_tiered_again_changes_nothing(live: LiveCluster) -> None:
    """It read that tiering was off; since then it was switched on again, and brokers rely on the remote data."""
    filled(live, "abcd")
    live.cluster.alter_configs("t", OFF)
    zombie = live.driver()
    stale = zombie.image
    live.cluster.alter_configs("t", {"remote.storage.enable": "true"})
    retained(live)
    failures: list[object] = []
    topic = stale.topic("t")
    run = Expiry(zombie._context, stale, {}, {(topic.topic_id, 0)}, False, failures)  # type: ignore[arg-type]
    run.run([topic])
    assert (len(listed(live)), failures) == (4, [])
    assert live.read() == {0: list("abcd")}
