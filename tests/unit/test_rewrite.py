"""Merges of appends into one segment, under the rule of copies (protocol section 3 step 4, section 4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import CorruptionError, LogGapError, SourceChangedError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, EpochName, WatermarkName
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import physical_schema
from stratalog.partitions.removal import Rule
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites import rewrite
from stratalog.partitions.rewrites.merge import MergePolicy, Run, plan_merges, sealed_runs
from stratalog.partitions.rewrites.rewrite import Removal, check_in_log, merge_run, remove_from_run, stage_run
from stratalog.partitions.root import format_root
from stratalog.partitions.segments.check import verify_segment
from stratalog.partitions.segments.reader import forget, read_batches, read_segment
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.segments import listed, records, write_segment

CLOCK = ManualClock(now_ms=5_000)


class Log:
    """A replica on a memory store whose appends have their own offsets as values."""

    def __init__(self, *lineage: tuple[int, int]) -> None:
        self.store = MemoryStore(clock=CLOCK)
        directory = format_root(self.store, "cluster", 1, lambda: "a" * 32).directory_id
        self.replica = Replica(1, self.store, directory, "events", "f" * 32, 3, 1)
        self.lineage = Lineage(lineage)
        name = EpochName(self.lineage.latest_epoch)
        assert self.store.create(self.replica.path(name), self.lineage.to_json())

    def move_to(self, store: MemoryStore) -> None:
        """Move the replica with its files to a faulty store."""
        for stored in self.store.list(""):
            store.create(stored.name, self.store.read(stored.name))
        self.store = store
        self.replica = replace(self.replica, store=store)

    def append(self, base: int, end: int, epoch: int = 1) -> None:
        rows = range(base, end)
        write_segment(
            self.store,
            DataName(base, None, epoch),
            [records([b"%d" % i for i in rows], timestamps_us=list(rows))],
            folder=self.replica.folder,
            lineage=[entry for entry in self.lineage if entry.epoch <= epoch],
            producers={"p": ProducerEntry(epoch, base, base, end, 0)},
        )

    def acknowledge(self, offset: int) -> None:
        self.store.create(self.replica.path(WatermarkName(offset, self.lineage.latest_epoch)), b"")

    def run(self, start: int, end: int) -> Run:
        return Run(tuple(link for link in self.replica.log().chain if start <= link.start < end))

    def merge(self, run: Run) -> int | None:
        return merge_run(self.replica, run, compression="zstd")

    def values(self) -> list[int]:
        return [
            int(value)
            for link in self.replica.log().chain
            for batch in read_batches(self.store, link.file, link.start, link.end)
            for value in batch.column("value").to_pylist()
        ]

    def names(self) -> list[str]:
        return [str(link.name) for link in self.replica.log().chain]

    def delete(self, name: DataName) -> None:
        self.store.delete([self.replica.path(name)])


def three_appends() -> Log:
    log = Log((1, 0))
    log.append(0, 3)
    log.append(3, 5)
    log.append(5, 9)
    log.acknowledge(9)
    return log


def test_a_merged_segment_holds_the_records_of_its_run_under_their_offsets() -> None:
    log = three_appends()
    size = log.merge(log.run(0, 5))
    assert log.names() == [str(DataName(0, 5, 1)), str(DataName(5, None, 1))]
    assert log.values() == list(range(9))
    merged = listed(log.store, DataName(0, 5, 1), log.replica.folder)
    assert size == merged.object.size_bytes
    table = pa.Table.from_batches(read_batches(log.store, merged, 0, 9))
    assert table.column("offset").to_pylist() == list(range(5))
    assert verify_segment(log.store, merged).parquet.num_row_groups == 1


@pytest.mark.parametrize(("room", "requests"), [(rewrite._HELD_BYTES, 1), (0, 2)])
def test_a_small_file_is_read_by_one_request_or_two_without_room_for_it(
    monkeypatch: pytest.MonkeyPatch, room: int, requests: int
) -> None:
    monkeypatch.setattr(rewrite, "_HELD_BYTES", room)
    log = three_appends()
    run = log.run(0, 9)
    forget()
    before = log.store.counts.snapshot()
    stage_run(log.store, run, log.store, log.replica.path(run.segment_name), compression="zstd", state=dict)
    assert (log.store.counts - before).reads == requests * len(run.links)


def test_a_run_that_is_hidden_by_a_merge_is_in_the_log_for_an_upload() -> None:
    log = three_appends()
    run = log.run(0, 5)
    log.merge(run)
    check_in_log(log.replica, run, or_merged=True)
    with pytest.raises(SourceChangedError, match="left the log"):
        check_in_log(log.replica, run)
    log.delete(run.links[0].name)
    with pytest.raises(SourceChangedError, match="left the log"):
        check_in_log(log.replica, run, or_merged=True)


def test_a_run_of_which_a_rule_has_removed_records_has_left_the_log() -> None:
    """The hidden files still have these records."""
    log = three_appends()
    log.replica = replace(log.replica, generation=1)
    run = log.run(0, 5)
    rule = Rule(1, 5)
    remove_from_run(
        log.replica,
        run,
        DataName(0, 5, 1, 1),
        Removal(rule, lambda start, end: np.ones(end - start, bool)),
        compression="zstd",
    )
    assert log.names()[0] == str(DataName(0, 5, 1, 1))
    with pytest.raises(SourceChangedError, match="left the log"):
        check_in_log(log.replica, run, or_merged=True)


def test_its_footer_is_as_if_it_had_been_one_append() -> None:
    """Producer state and lineage are the last file's, because both are cumulative."""
    log = three_appends()
    log.merge(log.run(0, 5))
    footer = read_segment(log.store, listed(log.store, DataName(0, 5, 1), log.replica.folder)).footer
    assert (footer.base_offset, footer.next_offset, footer.records) == (0, 5, 5)
    assert footer.producers == {"p": ProducerEntry(1, 3, 3, 5, 0)}
    assert (footer.topic_id, footer.partition) == ("f" * 32, 3)
    assert (footer.min_timestamp_us, footer.max_timestamp_us, footer.max_timestamp_offset) == (0, 4, 4)
    assert footer.created_ms == 1000  # the last append's time: every merge of the same files makes the same bytes


def test_appends_of_several_epochs_become_a_segment_of_the_last() -> None:
    """Section 1: the epoch of a merged segment is that of its last record."""
    log = Log((1, 0), (3, 3), (4, 5))
    log.append(0, 3, epoch=1)
    log.append(3, 5, epoch=3)
    log.append(5, 9, epoch=4)
    log.acknowledge(9)
    log.merge(log.run(0, 5))
    assert log.names() == [str(DataName(0, 5, 3)), str(DataName(5, None, 4))]
    assert log.values() == list(range(9))
    footer = read_segment(log.store, listed(log.store, DataName(0, 5, 3), log.replica.folder)).footer
    assert footer.lineage == ((1, 0), (3, 3))


def test_merged_segments_are_merged_again_without_a_change_of_their_columns() -> None:
    log = three_appends()
    log.merge(log.run(0, 5))
    before = read_segment(log.store, listed(log.store, DataName(0, 5, 1), log.replica.folder))
    log.merge(log.run(0, 9))
    after = read_segment(log.store, listed(log.store, DataName(0, 9, 1), log.replica.folder))
    assert log.values() == list(range(9))
    assert after.parquet.schema.equals(before.parquet.schema)


NARROW = physical_schema(value=pa.struct([("n", pa.int64())]))
WIDE = physical_schema(value=pa.struct([("n", pa.int64()), ("new", pa.string())]))


def typed(log: Log, *schemas: pa.Schema) -> Run:
    """One file of one record for each of the schemas: its offset, and "new" in added fields."""
    for base, schema in enumerate(schemas):
        value = {"n": base} | {field.name: "new" for field in list(schema.field("value").type)[1:]}
        row = records([value], schema=schema)
        write_segment(log.store, DataName(base, None, 1), [row], folder=log.replica.folder, schema=schema)
    log.acknowledge(len(schemas))
    return log.run(0, len(schemas))


@pytest.mark.parametrize(
    "schemas", [(NARROW, WIDE), (WIDE, NARROW), (NARROW, WIDE, NARROW)], ids=["nw", "wn", "nwn"]
)
def test_files_of_a_schema_that_has_grown_become_one_segment_of_the_wider_one(schemas: tuple[pa.Schema]) -> None:
    """A driver with the older schema appends after one with the newer schema: nothing is dropped."""
    merged = []
    for _ in range(2):
        log = Log((1, 0))
        run = typed(log, *schemas)
        log.merge(run)
        [link] = log.replica.log().chain
        merged.append(log.store.read(link.file.object.name))
    [table] = (pa.Table.from_batches(read_batches(log.store, link.file, 0, len(schemas))),)
    assert table.schema.field("value").type == WIDE.field("value").type
    assert table.column("value").to_pylist() == [
        {"n": base, "new": "new" if schema is WIDE else None} for base, schema in enumerate(schemas)
    ]
    verify_segment(log.store, link.file)
    assert merged[0] == merged[1], "every merge of the same files makes the same bytes"


def test_files_whose_schemas_contradict_each_other_are_left_alone() -> None:
    """No log has such files, so another program must have written there."""
    log = Log((1, 0))
    run = typed(log, WIDE, physical_schema(value=pa.struct([("n", pa.int64()), ("other", pa.string())])))
    before = log.names()
    with pytest.raises(CorruptionError, match="records of two schemas, neither of which grew from the other"):
        log.merge(run)
    assert log.names() == before


def test_a_segment_that_straddles_the_end_of_the_remote_log_is_cut() -> None:
    """Section 4, Merge: the remote table holds every offset once."""
    log = three_appends()
    log.merge(log.run(0, 9))
    [run] = sealed_runs(log.replica.log(), MergePolicy(1, 0, 2), from_offset=4, now_ms=CLOCK.now_ms())
    remote = MemoryStore()
    staged, footer = stage_run(log.store, run, remote, f"3/{run.segment_name}", compression="snappy", state=dict)
    assert (footer.base_offset, footer.next_offset) == (4, 9)
    assert remote.list("") == []
    assert staged.commit()
    uploaded = listed(remote, DataName(4, 9, 1), "3")
    values = [v for b in read_batches(remote, uploaded, 0, 99) for v in b.column("value").to_pylist()]
    assert values == [b"4", b"5", b"6", b"7", b"8"]


def test_another_writer_s_segment_of_that_name_is_as_good() -> None:
    log = three_appends()
    run = log.run(0, 5)
    staged, _ = stage_run(
        log.store, run, log.store, log.replica.path(run.segment_name), compression="zstd", state=dict
    )
    assert log.merge(run) is not None
    assert not staged.commit()
    assert log.values() == list(range(9))


def test_a_run_that_was_merged_meanwhile_has_left_the_log() -> None:
    log = three_appends()
    run = log.run(0, 5)
    log.merge(log.run(0, 9))
    with pytest.raises(SourceChangedError, match="left the log"):
        log.merge(run)


def test_a_file_that_is_deleted_before_it_is_read_makes_no_segment() -> None:
    log = three_appends()
    run = log.run(0, 5)
    log.delete(DataName(3, None, 1))
    with pytest.raises(SourceChangedError):
        log.merge(run)
    assert [o.name for o in log.store.list(log.replica.folder) if "-0" in o.name] == []


def test_v2_a_file_that_was_deleted_and_created_again_is_not_merged() -> None:
    """Rule 3: a copy is of the listed object, not of its name."""
    log = three_appends()
    run = log.run(0, 5)
    log.delete(DataName(3, None, 1))
    log.append(3, 5)
    with pytest.raises(SourceChangedError):
        log.merge(run)
    assert log.names() == [str(DataName(base, None, 1)) for base in (0, 3, 5)]


class TruncatedWhileStaged(MemoryStore):
    """A root on which the replica joins a newer epoch during a write."""

    path: str | None = None
    lineage = Lineage()

    def stage_writer(self, name: str):  # type: ignore[no-untyped-def]
        if self.path is not None:
            self.create(self.path, self.lineage.to_json())
        return super().stage_writer(name)


def test_a_file_that_dies_between_reading_and_naming_makes_no_segment() -> None:
    """Section 3 step 4 (!): after a copy the leader is listed again, and must still have the file in its log."""
    log = three_appends()
    store = TruncatedWhileStaged(clock=CLOCK)
    log.move_to(store)
    run = log.run(0, 5)
    store.path, store.lineage = log.replica.path(EpochName(2)), Lineage([(1, 0), (2, 3)])
    with pytest.raises(SourceChangedError, match="left the log"):
        log.merge(run)
    assert log.names() == [str(DataName(0, None, 1))]


class ReplacedBeforeTheCheck(MemoryStore):
    """A root that deletes a file, and creates another one of the same name, just before the next listing."""

    name: str | None = None

    def list(self, prefix: str, after: str = "", known=None):  # type: ignore[no-untyped-def]
        if self.name is not None:
            name, self.name = self.name, None
            data = self.read(name)
            self.delete([name])
            self.create(name, data)
        return super().list(prefix, after)


def test_v2_a_file_whose_name_was_taken_again_after_it_was_read_is_not_the_one_that_was_read() -> None:
    log = three_appends()
    store = ReplacedBeforeTheCheck(clock=CLOCK)
    log.move_to(store)
    run = log.run(0, 5)
    store.name = log.replica.path(DataName(3, None, 1))
    with pytest.raises(SourceChangedError, match="left the log"):
        log.merge(run)


def test_a_gap_that_the_listing_hides_is_found_by_the_footers() -> None:
    """V4, V13: the ends of appends are inferred from the next file; before a merge they are checked."""
    log = Log((1, 0))
    log.append(0, 3)
    log.append(5, 9)
    log.acknowledge(9)
    assert log.replica.log().log_end == 9, "the listing cannot tell"
    with pytest.raises(LogGapError, match="ends at offset 3, but the next file starts at 5"):
        log.merge(log.run(0, 9))


def test_a_job_merges_until_nothing_is_left_to_do() -> None:
    log = Log((1, 0))
    for base in range(0, 60, 2):
        log.append(base, base + 2)
    log.acknowledge(55)
    policy = MergePolicy(segment_bytes=1 << 30, segment_ms=10**15, min_files=3)
    while runs := plan_merges(log.replica.log(), policy, 0, CLOCK.now_ms()):
        for run in runs:
            log.merge(run)
    assert log.values() == list(range(60))
    assert log.names() == [str(DataName(0, 54, 1)), *(str(DataName(base, None, 1)) for base in (54, 56, 58))]
