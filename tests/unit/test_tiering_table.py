"""The Delta table of a topic: one winner per version, no duplicates, no losses, one owner."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import (
    CorruptionError,
    InconsistentClusterIdError,
    InvalidCallError,
    InvalidRecordError,
    LogGapError,
    OutcomeUnknownError,
    RemoteObjectMissingError,
    StorageError,
    UnsupportedStoreError,
)
from stratalog.partitions.records import physical_schema
from stratalog.partitions.store import StoreOptions, s3_session
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering import delta_options
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.foreign_commits import APPLICATION
from stratalog.tiering.remote_change import TableChange
from stratalog.tiering.remote_objects import find_litter
from stratalog.tiering.topic_table import COMMIT_ATTEMPTS, UNANSWERED_ATTEMPTS
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import OURS, TieredPartition, segment, table_in, uploaded
from tests.unit.together import together

HOUR_MS = 3_600_000


@pytest.fixture
def remote(tmp_path: Path) -> LocalStore:
    (tmp_path / "remote").mkdir()
    return LocalStore(str(tmp_path / "remote"))


@pytest.fixture
def table(remote: LocalStore) -> DeltaTopicTable:
    made = table_in(remote)
    made.ensure(SCHEMA)
    return made


def spans(table: DeltaTopicTable, partition: int = 0) -> list[tuple[int, int]]:
    return [(s.base_offset, s.next_offset) for s in table.load().of_partition(partition)]


def test_a_topic_that_was_never_tiered_has_an_empty_remote_log(remote: LocalStore) -> None:
    log = table_in(remote).load()
    assert (log.version, log.segments) == (-1, {})
    assert list(remote.list("")) == []


def test_the_table_shows_whose_it_is(table: DeltaTopicTable) -> None:
    table.ensure(SCHEMA)
    found = DeltaTable(table.uri)
    assert found.version() == 0
    assert found.metadata().name == "t"
    assert "topic t" in found.metadata().description
    properties = found.metadata().configuration
    assert properties["stratalog.topic_id"] == "f" * 32
    assert properties["stratalog.cluster_id"] == "c"
    assert properties["delta.checkpointInterval"] == "20"


def test_a_batch_is_one_version(table: DeltaTopicTable) -> None:
    batch = [uploaded(segment(10, 20)), uploaded(segment(0, 10)), uploaded(segment(0, 5, partition=1))]
    done = table.commit(batch, histories=OURS)
    assert done.log.version == 1
    assert set(done.listed) == set(batch)
    assert done.superseded == ()
    assert spans(table) == [(0, 10), (10, 20)]
    assert DeltaTable(table.uri).transaction_version(APPLICATION) == 1


def test_the_same_batch_again_makes_no_version(table: DeltaTopicTable) -> None:
    batch = [uploaded(segment(0, 10))]
    done = table.commit(batch, histories=OURS)
    again = table.commit(batch, histories=OURS)
    assert (again.log.version, again.listed) == (1, tuple(batch))
    assert (done.made, again.made) == ({batch[0].segment.path}, set()), "it counts as done by the one that did it"


def test_files_of_another_driver_with_the_same_offsets_stay(table: DeltaTopicTable) -> None:
    table.commit([uploaded(segment(0, 12))], histories=OURS)
    late = [uploaded(segment(0, 10)), uploaded(segment(10, 20))]
    done = table.commit(late, histories=OURS)
    assert (done.log.version, done.listed, done.superseded) == (1, (), tuple(late))


def test_a_batch_that_would_break_the_log_changes_nothing(table: DeltaTopicTable) -> None:
    table.commit([uploaded(segment(0, 10))], histories=OURS)
    with pytest.raises(LogGapError):
        table.commit([uploaded(segment(20, 30))], histories=OURS)
    with pytest.raises(CorruptionError, match="with 100 bytes, but the upload had 7"):
        table.commit([uploaded(segment(0, 10, size=7))], histories=OURS)
    assert table.load().version == 1


def test_old_segments_go_and_the_log_starts_over_in_one_version(table: DeltaTopicTable) -> None:
    """KIP-1023, "ReplicaFetcher Changes": the remote log ends far below the log start; no version has a gap."""
    table.commit([uploaded(segment(0, 10))], histories=OURS)
    done = table.commit([uploaded(segment(40, 50))], [segment(0, 10)], OURS)
    assert (done.log.version, done.log.start(0), done.log.end(0)) == (2, 40, 50)


def test_removing_what_is_gone_already_makes_no_version(table: DeltaTopicTable) -> None:
    table.commit([uploaded(segment(0, 10)), uploaded(segment(10, 20))], histories=OURS)
    table.commit((), [segment(0, 10)])
    assert table.commit((), [segment(0, 10)]).log.version == 2


def test_drivers_with_one_plan_commit_every_offset_once(table: DeltaTopicTable) -> None:
    batch = [uploaded(segment(base, base + 10, partition=p)) for p in range(3) for base in range(0, 50, 10)]

    def drive(mine: DeltaTopicTable) -> None:
        for of_partition in (batch[:5], batch[5:10], batch[10:], batch):
            mine.commit(of_partition, histories=OURS)

    together(*(partial(drive, table_in(table.remote, seed=number)) for number in range(6)))
    for partition in range(3):
        assert spans(table, partition) == [(base, base + 10) for base in range(0, 50, 10)]
    assert table.load().version == 3
    adds = sum(entry.read_text().count('"add"') for entry in (Path(table.uri) / "_delta_log").glob("*.json"))
    assert adds == len(batch)


def test_tables_are_created_once_by_any_number_of_drivers(remote: LocalStore) -> None:
    together(*(partial(table_in(remote, seed=number).ensure, SCHEMA) for number in range(6)))
    assert table_in(remote).load().version == 0


def test_delta_refuses_a_second_commit_on_one_version_even_if_it_rebases(table: DeltaTopicTable) -> None:
    """The second lock: whatever a writer retries, the application transaction has changed meanwhile."""
    one, two = DeltaTable(table.uri), DeltaTable(table.uri)
    for driver, name in ((one, "a"), (two, "b")):

        def commit(driver: DeltaTable = driver, name: str = name) -> None:
            driver.create_write_transaction(
                [AddAction(f"0/{name}.parquet", 1, {}, 0, True, "{}")],
                mode="append",
                schema=driver.schema(),
                commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, 1)]),
            )

        if driver is one:
            commit()
        else:
            with pytest.raises(CommitFailedError, match="Concurrent transaction"):
                commit()


class Faulty(DeltaTopicTable):
    """A table whose next commits lose their answer, before or after they have taken effect."""

    def __init__(self, other: DeltaTopicTable, failures: list[tuple[bool, Exception]]) -> None:
        self.__dict__.update(other.__dict__)
        self.failures = failures

    def _put(self, table: DeltaTable, change: TableChange) -> None:
        landed, error = self.failures.pop(0) if self.failures else (True, None)
        if landed:
            super()._put(table, change)
        if error is not None:
            raise error


def test_a_commit_that_landed_without_an_answer_is_found(table: DeltaTopicTable) -> None:
    batch = [uploaded(segment(0, 10))]
    done = Faulty(table, [(True, OSError("timed out"))]).commit(batch, histories=OURS)
    assert (done.log.version, done.listed) == (1, tuple(batch))


def test_a_commit_that_did_not_land_is_retried(table: DeltaTopicTable) -> None:
    done = Faulty(table, [(False, OSError("timed out")), (False, CommitFailedError("0"))]).commit(
        [uploaded(segment(0, 10))], histories=OURS
    )
    assert done.log.version == 1


def test_commits_that_never_get_an_answer_end_as_unknown(table: DeltaTopicTable) -> None:
    """And soon: each of them may have taken a full timeout, and other topics wait for their commits."""
    lost: list[tuple[bool, Exception]] = [(False, OSError("timed out"))] * UNANSWERED_ATTEMPTS
    with pytest.raises(OutcomeUnknownError, match=f"failed {UNANSWERED_ATTEMPTS} times.*read before you retry"):
        Faulty(table, lost).commit([uploaded(segment(0, 10))], histories=OURS)
    assert table.load().version == 0


def test_a_crowd_that_is_always_faster_ends_as_retriable(table: DeltaTopicTable) -> None:
    lost: list[tuple[bool, Exception]] = [(False, CommitFailedError("0"))] * COMMIT_ATTEMPTS
    with pytest.raises(StorageError, match="other writers were faster 20 times"):
        Faulty(table, lost).commit([uploaded(segment(0, 10))], histories=OURS)


def test_the_table_of_another_cluster_is_refused(table: DeltaTopicTable) -> None:
    foreign = table_in(table.remote, cluster_id="other")
    for call in (
        foreign.load,
        lambda: foreign.ensure(SCHEMA),
        lambda: foreign.commit([uploaded(segment(0, 1))], histories=OURS),
    ):
        with pytest.raises(InconsistentClusterIdError, match="belongs to cluster 'c', not to 'other'"):
            call()


def test_the_table_of_another_topic_is_refused(table: DeltaTopicTable, tmp_path: Path) -> None:
    other = table_in(table.remote, topic_id="e" * 32)
    Path(table.uri).rename(other.uri)
    with pytest.raises(CorruptionError, match="belongs to topic id"):
        other.load()


def test_a_table_of_another_writer_is_refused(remote: LocalStore) -> None:
    ours = table_in(remote)
    DeltaTable.create(ours.uri, SCHEMA)
    with pytest.raises(InconsistentClusterIdError, match="does not name its cluster"):
        ours.load()


def test_files_that_another_writer_wrote_are_refused(table: DeltaTopicTable) -> None:
    table.commit([uploaded(segment(0, 10))], histories=OURS)
    other = DeltaTable(table.uri)
    other.create_write_transaction(
        [AddAction("part-0.parquet", 1, {}, 0, True, "{}")], mode="append", schema=other.schema()
    )
    with pytest.raises(CorruptionError, match=r"another writer has changed the records.*restore\(1\)"):
        table.load()


def test_another_schema_is_refused(table: DeltaTopicTable) -> None:
    with pytest.raises(InvalidRecordError, match="has the schema"):
        table.ensure(physical_schema(value=pa.struct([("x", pa.int32())])))


@pytest.mark.parametrize(
    "value",
    [
        pa.struct([("n", pa.timestamp("us")), ("d", pa.decimal128(9, 2)), ("i", pa.int8())]),
        pa.struct([("m", pa.map_(pa.string(), pa.int32())), ("l", pa.list_(pa.field("element", pa.date32())))]),
        pa.struct([("x", pa.int32(), False)]),
    ],
)
def test_typed_schemas_are_recognised_again(remote: LocalStore, value: pa.DataType) -> None:
    made = table_in(remote)
    made.ensure(physical_schema(value=value))
    made.ensure(physical_schema(value=value))
    assert made.load().version == 0


def test_objects_that_are_gone_or_truncated_are_found(tmp_path: Path) -> None:
    part = TieredPartition(tmp_path)
    part.append(3, 4, 5)
    log = part.tier().log
    part.table.check_objects(log)
    first, second, _ = log.of_partition(0)
    (tmp_path / "remote" / part.table.path(first)).unlink()
    with (tmp_path / "remote" / part.table.path(second)).open("ab") as file:
        file.write(b"x")
    assert part.table.missing_objects(log) == [first, second]
    with pytest.raises(RemoteObjectMissingError, match=r"2 objects are affected in all"):
        part.table.check_objects(log)


def test_vacuum_deletes_what_was_removed_and_nothing_else(tmp_path: Path) -> None:
    """Copy -> commit -> delete: neither listed files nor uploads that wait for their commit are deleted."""
    part = TieredPartition(tmp_path)
    part.append(3, 4, 5)
    log = part.tier().log
    part.append(6)
    waiting = part.upload(part.plan())
    first, second, third = log.of_partition(0)
    part.table.commit((), [first, second])
    assert part.table.vacuum(0) == [part.table.path(first), part.table.path(second)]
    assert part.table.vacuum(0) == []
    names = {stored.name for stored in part.remote.list(part.table.folder) if stored.name.endswith(".parquet")}
    assert names == {part.table.path(third), *(part.table.path(upload.segment) for upload in waiting)}
    done = part.commit(waiting)
    part.table.check_objects(done.log)


def test_vacuum_waits(tmp_path: Path) -> None:
    part = TieredPartition(tmp_path)
    part.table = table_in(part.remote, clock=part.one.clock)
    part.append(3, 4)
    log = part.tier().log
    now_ms = int((tmp_path / "remote").stat().st_mtime * 1000)
    almost_two_hours_ago = now_ms - 2 * HOUR_MS + 60_000
    part.one.clock.advance_ms(almost_two_hours_ago - part.one.clock.now_ms())
    part.remote.now_ms = part.one.clock.now_ms  # type: ignore[method-assign]
    part.table.commit((), log.of_partition(0)[:1])
    assert part.table.vacuum(HOUR_MS + 1) == []  # rounded up to two hours
    assert part.table.vacuum(HOUR_MS) == [part.table.path(log.of_partition(0)[0])]


def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    part = TieredPartition(tmp_path)
    part.append(3)
    part.tier()
    part.table.delete()
    assert list(part.remote.list("")) == []
    assert part.table.load().version == -1
    part.table.delete()


def test_stores_that_delta_cannot_reach_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStoreError, match="memory://m"):
        table_in(MemoryStore("memory://m"))
    (tmp_path / "100%").mkdir()
    with pytest.raises(InvalidCallError, match="100%"):
        table_in(LocalStore(str(tmp_path / "100%")))


def test_folders_with_odd_names_hold_tables(tmp_path: Path) -> None:
    folder = tmp_path / "a b#ü?[x]+~:"
    folder.mkdir()
    made = table_in(LocalStore(str(folder)))
    made.ensure(SCHEMA)
    made.commit([uploaded(segment(0, 10))], histories=OURS)
    assert spans(made) == [(0, 10)]


def test_an_error_of_delta_is_shown_in_one_line_without_the_servers_answer() -> None:
    error = OSError(
        "Kernel error \x1b[31m↳\x1b[0m 403 Forbidden\n <?xml version='1.0'?><Error><Code>ExpiredToken</Code>"
        "<Token-0>secret</Token-0></Error>"
    )
    assert delta_options.error_text(error) == "Kernel error : 403 Forbidden (ExpiredToken)"


def test_options_of_folders_are_none_and_those_of_s3_find_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3_session._session.cache_clear()
    options = StoreOptions(endpoint_url="http://localhost:1", region="eu-west-1")
    assert delta_options.storage_options("/folder", options) == {}
    found: dict[str, Any] = delta_options.storage_options("s3://b/t", options)
    assert found["AWS_ALLOW_HTTP"] == "true"
    assert (found["AWS_REGION"], found["AWS_ACCESS_KEY_ID"]) == ("eu-west-1", "key")
    assert "secret" not in repr(options)
    s3_session._session.cache_clear()


def test_an_unreadable_table_is_a_storage_error(table: DeltaTopicTable) -> None:
    entry = Path(table.uri) / "_delta_log" / "00000000000000000000.json"
    entry.write_text("{")
    with pytest.raises(StorageError, match="cannot read the table"):
        table.load()


@pytest.mark.slow
def test_the_log_survives_checkpoints(tmp_path: Path) -> None:
    part = TieredPartition(tmp_path)
    for _ in range(22):
        part.append(2)
        part.tier()
    assert list((Path(part.table.uri) / "_delta_log").glob("*.checkpoint.parquet"))
    log = part.table.load()
    assert (log.version, log.end(0), len(log.of_partition(0))) == (22, 44, 22)
    assert {(s.min_timestamp_ms, s.max_timestamp_ms) for s in log.of_partition(0)} == {(1000, 1001)}


def age(table: DeltaTopicTable, days: int) -> Path:
    """Give the files of the table's log this age; returns its folder."""
    log = Path(table.uri) / "_delta_log"
    for path in log.iterdir():
        when = path.stat().st_mtime - days * 24 * 60 * 60
        os.utime(path, (when, when))
    return log


def test_the_log_of_a_table_to_which_nobody_commits_any_more_can_be_cleaned(table: DeltaTopicTable) -> None:
    """delta.logRetentionDuration: entries are deleted when a checkpoint replaces them and they are 30 days old."""
    for base in range(0, 50, 10):
        table.commit([uploaded(segment(base, base + 10))], histories=OURS)
    log = age(table, 29)
    table.clean_log()
    assert len(list(log.glob("*.json"))) == 6
    age(table, 2)
    table.clean_log()
    assert len(list(log.glob("*.json"))) <= 1
    assert table.load().end(0) == 50
    table.commit([uploaded(segment(50, 60))], histories=OURS)
    assert table.load().end(0) == 60


@pytest.mark.slow
def test_commits_clean_the_log_behind_their_checkpoints(table: DeltaTopicTable) -> None:
    """Opening costs one checkpoint and the entries since, for any number of versions."""
    for number in range(45):
        if number == 22:
            log = age(table, 31)
        table.commit([uploaded(segment(number, number + 1))], histories=OURS)
    versions = sorted(int(path.stem) for path in log.glob("*.json"))
    assert len(versions) < 30
    assert versions[-1] == 45
    assert table.load().end(0) == 45


def test_files_removed_and_the_log_are_of_one_version(table: DeltaTopicTable) -> None:
    batch = [segment(0, 10), segment(10, 20), segment(20, 30)]
    table.commit([uploaded(each) for each in batch], histories=OURS)
    table.commit((), batch[:2])
    log, removed = table.load_with_removed(0)
    assert (log.all_segments(), removed.ever) == ((batch[2],), {each.path for each in batch[:2]})
    assert removed.due == removed.ever
    for delay_ms in (10**13, 2**63 - 1):  # the second is Kafka's longest time; in hours, delta-rs would panic
        log, removed = table.load_with_removed(delay_ms)
        assert (len(removed.ever), removed.due) == (2, frozenset())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_file_that_a_job_with_a_clock_ahead_has_removed_waits_for_its_delay(
    table: DeltaTopicTable, remote: LocalStore, checkpoint: bool
) -> None:
    """delta-rs shows no removal in the future. The object seemed to be an upload that was never committed, which
    vacuum deletes immediately, although readers may still need it."""
    first, second = segment(0, 10), segment(10, 20)
    table.commit([uploaded(first), uploaded(second)], histories=OURS)
    now_ms = SystemClock().now_ms()
    table_in(remote, clock=ManualClock(now_ms + HOUR_MS)).commit((), [first])
    if checkpoint:
        DeltaTable(table.uri).create_checkpoint()
    remote.create(table.path(first), b"PAR1")
    log, removed = table.load_with_removed(0)
    assert (removed.ever, removed.due) == ({first.path}, frozenset())
    tomorrow_ms = now_ms + 24 * HOUR_MS
    found = find_litter(
        table.objects(), log, removed, log_starts={0: 10}, lineages={}, tiered=True, before_ms=tomorrow_ms
    )
    assert found.litter == {}


def test_a_file_that_is_listed_again_is_not_a_removed_one(table: DeltaTopicTable) -> None:
    table.commit([uploaded(segment(0, 10))], histories=OURS)
    for _ in range(2):
        table.commit((), [segment(0, 10)])
        assert table.load_with_removed(0)[1].ever == {segment(0, 10).path}
        table.commit([uploaded(segment(0, 10))], histories=OURS)
        assert table.load_with_removed(0)[1].ever == frozenset()
        DeltaTable(table.uri).create_checkpoint()


def test_a_topic_that_is_to_be_deleted_is_marked_once(table: DeltaTopicTable, remote: LocalStore) -> None:
    assert table.is_marked_deleted() is False
    for _ in range(2):
        table.mark_deleted(True)
    assert (table.is_marked_deleted(), table.load().version) == (True, 1)
    table.mark_deleted(False)
    assert (table.is_marked_deleted(), table.load().version) == (False, 2)
    none = table_in(remote, topic_id="e" * 32)
    none.mark_deleted(True)
    assert none.is_marked_deleted() is None


def test_when_a_segment_appeared_in_the_remote_is_kept(tmp_path: Path) -> None:
    part = TieredPartition(tmp_path)
    part.append(3)
    (found,) = part.tier().log.of_partition(0)
    path = tmp_path / "remote" / part.table.path(found)
    assert found.modified_ms == path.stat().st_mtime_ns // 1_000_000
    assert found.extent.written_ms == found.modified_ms
