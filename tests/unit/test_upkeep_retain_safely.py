"""Retention deletes nothing before it has read the remote copy (protocol, I8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stratalog.engine.driver.tasks import Silent
from stratalog.engine.reading.look import remote_pieces
from stratalog.partitions.errors import StorageError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName, base_name, parse_name
from stratalog.partitions.segments.reader import Segment
from stratalog.partitions.store import Store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering import remote_file
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from tests.unit.cluster_harness import Dying, LiveCluster, codes, remote_files, the_failure
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed
from tests.unit.retention_harness import filled, local_start, retained
from tests.unit.tampering import spot
from tests.unit.tiering_harness import segment, table_in, uploaded


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


@pytest.mark.slow
def test_one_bit_of_an_object_that_looks_as_it_was_keeps_the_brokers_from_letting_go(live: LiveCluster) -> None:
    """Name, size, time, and footer are unchanged: only a full read detects it. heal repairs it from the brokers'
    copies."""
    filled(live, "abcd")
    second = remote_files(live)[1]
    before = second.stat()
    content = bytearray(second.read_bytes())
    content[40] ^= 1
    second.write_bytes(content)
    os.utime(second, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert second.name in the_failure(live.cluster.retain(check=False))
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [1, 1, 1]
    live.cluster.heal().raise_for_failures()
    retained(live)
    assert local_start(live) == 3
    assert live.read() == {0: list("abcd")}


@pytest.mark.slow
def test_an_object_that_goes_bad_while_the_delay_passes_keeps_the_copies_on_the_brokers(live: LiveCluster) -> None:
    filled(live, "abcd", file_delete_delay_ms="3600000")
    live.cluster.retain().raise_for_failures()
    assert local_start(live) == 3
    second = remote_files(live)[1]
    content = bytearray(second.read_bytes())
    content[40] ^= 1
    second.write_bytes(content)
    live.clock.advance_ms(2 * 3600_000)
    before = live.on_brokers()
    assert second.name in the_failure(live.driver().retain(check=False))
    gone = {base_name(name) for name in before.keys() - live.on_brokers().keys() if "/t-" in name}
    assert gone == {f"{2:020d}.{1:010d}.parquet"}, "files after it may go"
    live.driver().heal().raise_for_failures()
    live.driver().retain().raise_for_failures()
    assert live.read() == {0: list("abcd")}


def test_files_that_a_merge_hides_are_deleted_once_the_segment_was_read_on_that_replica(live: LiveCluster) -> None:
    live.topic(segment_bytes="1000000", segment_merge_min_files="2", file_delete_delay_ms="0")
    live.fill("abcd")
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    spot(live, 2, 0).flip(40)
    for _ in range(2):
        assert "t-0 on broker 2: CORRUPT_SEGMENT" in the_failure(live.driver().retain(check=False))
    assert [len(live.log(broker).listing.data) for broker in (1, 2, 3)] == [1, 5, 1]
    live.driver().heal().raise_for_failures()
    live.driver().retain().raise_for_failures()
    assert [len(live.log(broker).listing.data) for broker in (1, 2, 3)] == [1, 1, 1]
    assert live.read() == {0: list("abcd")}


def test_an_object_that_was_replaced_by_a_faithful_copy_is_read_whole_and_relied_upon(live: LiveCluster) -> None:
    """After a bucket was copied, every object has another time. Its checksums are right."""
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
        report = live.cluster.retain(check=False)
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
    report = live.cluster.retain(check=False)
    assert second.name in the_failure(report)
    assert local_start(live) == 1


def test_files_stay_on_the_brokers_when_their_remote_copy_goes_during_the_delay(live: LiveCluster) -> None:
    """The remote object is deleted between the move of the local start and the deletion of the files,
    file.delete.delay.ms later.
    """
    filled(live, "abcd", file_delete_delay_ms="60000")
    live.cluster.retain().raise_for_failures()
    assert (local_start(live), len(live.log(1).listing.data)) == (3, 4)
    for path in remote_files(live):
        path.unlink()
    live.clock.advance_ms(120_000)
    assert codes(live.cluster.retain(check=False)) == {"REMOTE_OBJECT_MISSING": 1}
    assert len(live.log(1).listing.data) == 4


class _Meanwhile(Silent):
    """Lets other drivers act when a retain is planned, and its tasks are about to run."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def start(self, operation: str, items: int, unit: str) -> None:
        self.act()


@pytest.mark.slow
def test_objects_that_another_run_expires_meanwhile_are_not_missing(live: LiveCluster) -> None:
    """Such an object left the table before it was deleted, and after this run had read the table."""
    filled(live, "abcd", file_delete_delay_ms="0")
    objects = remote_files(live)

    def expire() -> None:
        live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
        live.driver().retain().raise_for_failures()
        assert remote_files(live) == objects[2:]

    live.driver(_Meanwhile(expire)).retain().raise_for_failures()
    retained(live)


def late_commit_of_a_lost_history(live: LiveCluster) -> None:
    """The late commit of a driver that read the leader, was delayed, and commits its version after an unclean
    election."""
    topic = live.cluster.image.topic("t")
    uploads = []
    for path in remote_files(live)[2:]:
        name = parse_name(path.name)
        assert isinstance(name, DataName)
        lost = RemoteSegment(0, name, name.base_offset + 1, path.stat().st_size)
        uploads.append(replace(uploaded(lost), modified_ms=path.stat().st_mtime_ns // 1_000_000))
    table = table_in(LocalStore(str(live.remote)), topic_id=topic.topic_id)
    epoch = uploads[0].segment.epoch
    table.commit(uploads, (), Histories({0: Lineage([(epoch, 0)])}, lambda: {0: Present(epoch)}))


@pytest.mark.slow
def test_remote_segments_of_a_lost_history_count_for_nothing(tmp_path: Path) -> None:
    """Broker 3 was away when broker 2 appended, and leads now. Remote segments with records that broker 3 never
    had are not of its history: no reader sees them, broker 3 deletes nothing because of them, and the next tier
    run removes them.
    """
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered(local_retention_bytes="-2")
    live.cluster.reassign({("t", 0): [2, 3]}).raise_for_failures()
    live.fill("ab")
    live.cluster.tier().raise_for_failures()
    with live.unreachable(3):
        live.cluster.brokers.fence([3])
        live.fill("cdef")
    with pytest.raises(KeyboardInterrupt):
        live.driver(progress=Dying()).tier()
    with live.unreachable(2):
        live.cluster.brokers.fence([2], force=True)
        live.cluster.brokers.unfence([3])
        live.cluster.elect(["t"], unclean=True).raise_for_failures()
        live.fill("xyz")
        late_commit_of_a_lost_history(live)
        assert len(listed(live)) == 6
        live.cluster.topics.alter_configs("t", {"local.retention.bytes": "0"})
        for _ in range(2):
            live.cluster.retain(["t"]).raise_for_failures()
        assert local_start(live, 3) == 2
        assert live.read() == {0: list("abxyz")}
        report = live.cluster.tier().raise_for_failures()
        assert "was lost in an unclean election" in " ".join(report.notes)
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
    """A batch was lost, and the next one committed to an empty table: earlier records are only on the brokers."""
    filled(live, "abcd")
    topic = live.cluster.image.topic("t")
    table = table_in(LocalStore(str(live.remote)), topic_id=topic.topic_id)
    table.commit((), table.load().of_partition(0)[:1])
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert [local_start(live, broker) for broker in (1, 2, 3)] == [0, 0, 0]
    assert "the log starts at offset 0, but the remote log starts at 1" in str(live.cluster.verify().failures)
    assert live.read() == {0: list("abcd")}


@pytest.mark.parametrize("call", [2, 3, 4])
def test_a_table_that_cannot_be_read_at_some_step_is_a_failure(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Each step reads the table again."""
    filled(live, "abc")
    loads, load = [0], DeltaTopicTable.load

    def loaded(table: DeltaTopicTable) -> RemoteLog:
        loads[0] += 1
        if loads[0] == call:
            raise StorageError("no answer")
        return load(table)

    monkeypatch.setattr(DeltaTopicTable, "load", loaded)
    report = live.cluster.retain(check=False)
    assert (loads[0] < call) == report.ok
    if not report.ok:
        assert the_failure(report) == "t: KAFKA_STORAGE_ERROR: no answer"


@pytest.mark.parametrize("tiered", [True, False])
def test_segments_count_as_removed_after_the_commit(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch, tiered: bool
) -> None:
    filled(live, "abc", local_retention_bytes="-1")
    if tiered:
        live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    else:
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        live.cluster.topics.alter_configs("t", off)

    def refused(*_: object) -> None:
        raise StorageError("no answer")

    assert live.cluster.retain(dry_run=True).totals["remote_removed"] == (2 if tiered else 3)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTopicTable, "commit", refused)
        report = live.cluster.retain(check=False)
    assert the_failure(report) == "t: KAFKA_STORAGE_ERROR: no answer"
    assert report.totals["remote_removed"] == 0
    assert live.cluster.retain().raise_for_failures().totals["remote_removed"] == (2 if tiered else 3)
