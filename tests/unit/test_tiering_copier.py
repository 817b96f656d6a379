"""Uploads: the new files in the remote tier, reused and refused ones, and the result of a crash."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from stratalog.partitions.errors import CorruptionError, CorruptSegmentError, SourceChangedError
from stratalog.partitions.rewrites.merge import MergePolicy, Run
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.store import Store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering import copier
from stratalog.tiering.copier import upload
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles, Why, find_litter
from stratalog.tiering.remote_segment import Uploaded
from tests.unit.at_calls import dies_at
from tests.unit.harness import OnePartition
from tests.unit.tiering_harness import EACH_FILE, ONE_SEGMENT, TieredPartition


@pytest.fixture
def part(tmp_path: Path) -> TieredPartition:
    made = TieredPartition(tmp_path)
    made.append(3, 4, 5)
    return made


def bring(part: TieredPartition, run: Run, remote: Store | None = None) -> Uploaded:
    return upload(part.leader, run, remote or part.remote, part.table.folder, compression="zstd")


def object_of(part: TieredPartition, of: Uploaded, tmp_path: Path) -> Path:
    return tmp_path / "remote" / part.table.path(of.segment)


def test_a_whole_file_is_copied_byte_for_byte_under_its_own_name(part: TieredPartition, tmp_path: Path) -> None:
    run = part.plan().runs[0]
    done = bring(part, run)
    local = run.links[0].file.object
    assert done.segment.name == run.links[0].name
    assert object_of(part, done, tmp_path).read_bytes() == part.leader.store.read(local.name)
    assert (done.segment.records, done.copied_bytes) == (3, local.size_bytes)
    assert (done.segment.min_timestamp_ms, done.segment.max_timestamp_ms) == (1000, 1001)
    assert pickle.loads(pickle.dumps(done)) == done


def test_files_that_are_one_segment_are_rewritten(part: TieredPartition) -> None:
    (run,) = part.plan(ONE_SEGMENT).runs
    done = part.commit([bring(part, run)])
    assert [s.path for s in done.log.of_partition(0)] == [f"0/{run.segment_name}"]
    rows = DeltaTable(part.table.uri).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
    assert [(row["offset"], row["value"]) for row in rows] == [(n, f"v{n}".encode()) for n in range(12)]


def test_a_file_that_straddles_the_remote_end_is_cut(part: TieredPartition) -> None:
    part.log_start = 5
    done = part.tier()
    assert [(s.base_offset, s.next_offset) for s in done.log.of_partition(0)] == [(5, 7), (7, 12)]
    rows = DeltaTable(part.table.uri).to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
    assert sorted(rows) == list(range(5, 12))


def test_uploads_that_a_crash_left_uncommitted_are_reused(part: TieredPartition, tmp_path: Path) -> None:
    """Crash after the upload, before the commit: KIP-405's COPY_SEGMENT_STARTED."""
    first = part.upload(part.plan())
    inodes = [object_of(part, done, tmp_path).stat().st_ino for done in first]
    again = part.upload(part.plan())
    assert [done.segment for done in again] == [done.segment for done in first]
    assert [done.copied_bytes for done in again] == [0, 0, 0]
    assert [object_of(part, done, tmp_path).stat().st_ino for done in again] == inodes
    assert part.commit(again).log.end(0) == 12


def test_a_rewritten_run_is_reused_as_well(part: TieredPartition) -> None:
    first = part.upload(part.plan(ONE_SEGMENT))
    again = part.upload(part.plan(ONE_SEGMENT))
    assert [(u.segment, u.statistics) for u in again] == [(u.segment, u.statistics) for u in first]
    assert [u.copied_bytes for u in again] == [0]


@pytest.mark.parametrize("policy", [EACH_FILE, ONE_SEGMENT], ids=["copied", "rewritten"])
def test_an_upload_of_other_records_at_the_same_offsets_is_never_taken_for_our_own(
    part: TieredPartition, tmp_path: Path, policy: MergePolicy
) -> None:
    """A driver died between upload and commit, then the brokers were restored with their metadata: the same
    offsets, the same leader epoch, the same names, other records."""
    old = part.upload(part.plan(policy))
    before = {of: object_of(part, of, tmp_path).read_bytes() for of in old}
    shutil.rmtree(tmp_path / "leader")
    (tmp_path / "leader").mkdir()
    part.one = OnePartition(stores=[LocalStore(str(tmp_path / "leader"))])
    for start, end in ((0, 3), (3, 7), (7, 12)):
        part.one.append([f"w{offset}" for offset in range(start, end)])
    new = part.upload(part.plan(policy))
    assert [of.segment.name for of in new] == [of.segment.name for of in old]
    assert [of.segment.rebuilt for of in new] == [1] * len(old)
    assert [of.segment for of in part.upload(part.plan(policy))] == [of.segment for of in new], "ours is reused"
    done = part.commit(new)
    rows = DeltaTable(part.table.uri).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
    assert sorted((row["offset"], row["value"]) for row in rows) == [(n, f"w{n}".encode()) for n in range(12)]
    assert {of: object_of(part, of, tmp_path).read_bytes() for of in old} == before
    objects = RemoteObjects.of(part.table.folder, part.remote.list(part.table.folder))
    found = find_litter(
        objects, done.log, RemovedFiles(), log_starts={}, lineages={}, tiered=True, before_ms=10**15
    )
    assert found.litter == dict.fromkeys([of.segment.path for of in old], Why.SUPERSEDED)


def test_a_crash_before_the_name_leaves_nothing(part: TieredPartition) -> None:
    """Crash between staging and naming: no object, no half file."""
    run = part.plan().runs[0]
    with dies_at(copier, "_check_same_object"):
        bring(part, run)
    assert [stored.name for stored in part.remote.list(f"{part.table.folder}/0")] == []
    assert bring(part, run).copied_bytes > 0


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_run_of_which_a_file_left_the_log_while_it_was_read_is_not_uploaded(
    part: TieredPartition, monkeypatch: pytest.MonkeyPatch, rewritten: bool, replaced: bool
) -> None:
    """Protocol, section 3, step 4: "then L is listed again and still has the file in its log (!)"."""
    run = (part.plan(ONE_SEGMENT) if rewritten else part.plan()).runs[0]
    name, store = run.links[0].file.object.name, part.leader.store
    data, stage = store.read(name), copier._stage

    def staged_as_the_file_goes(*args: Any) -> Any:
        done = stage(*args)
        store.delete([name])
        if replaced:  # a zombie creates the name again, which retention has freed
            assert store.create(name, data)
        return done

    monkeypatch.setattr(copier, "_stage", staged_as_the_file_goes)
    with pytest.raises(SourceChangedError, match="left the log"):
        bring(part, run)
    assert [stored.name for stored in part.remote.list(f"{part.table.folder}/0")] == []


def test_a_run_that_is_merged_while_it_is_read_is_uploaded(
    part: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are live, and hidden only by a segment with the same records."""
    (run,) = part.plan(ONE_SEGMENT).runs
    stage = copier._stage

    def staged_as_it_is_merged(*args: Any) -> Any:
        done = stage(*args)
        assert merge_run(part.leader, run, compression="zstd")
        return done

    monkeypatch.setattr(copier, "_stage", staged_as_it_is_merged)
    done = part.commit([bring(part, run)])
    assert [s.path for s in done.log.of_partition(0)] == [f"0/{run.segment_name}"]


def test_the_upload_of_a_segment_lists_nothing_however_long_the_log_is(part: TieredPartition) -> None:
    runs = part.plan().runs
    before = part.leader.store.counts.snapshot()
    for run in runs:
        bring(part, run)
    assert (part.leader.store.counts - before).lists == 0


@pytest.mark.parametrize("rewritten", [False, True])
def test_other_content_under_the_name_is_refused(part: TieredPartition, tmp_path: Path, rewritten: bool) -> None:
    plan = part.plan(ONE_SEGMENT) if rewritten else part.plan()
    path = object_of(part, bring(part, plan.runs[0]), tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[30] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=path.name):
        bring(part, plan.runs[0])
    path.write_bytes(damaged[:-1])
    with pytest.raises(CorruptionError, match=f"{path.name}.*delete it, then run tier"):
        bring(part, plan.runs[0])
    path.unlink()
    assert part.tier(ONE_SEGMENT if rewritten else EACH_FILE).log.end(0) == 12


def test_a_damaged_leader_is_not_copied(part: TieredPartition, tmp_path: Path) -> None:
    run = part.plan().runs[1]
    path = tmp_path / "leader" / run.links[0].file.object.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises((CorruptSegmentError, SourceChangedError)):
        bring(part, run)


def test_the_statistics_are_those_of_the_records(part: TieredPartition) -> None:
    done = part.tier()
    actions = DeltaTable(part.table.uri).get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in ("min.offset", "max.offset", "num_records")}
    found = sorted(zip(*columns.values(), strict=True))
    assert [tuple(int(str(cell)) for cell in row) for row in found] == [(0, 2, 3), (3, 6, 4), (7, 11, 5)]
    assert done.log.of_partition(0)[0].max_timestamp_ms == 1001


def test_a_remote_in_memory_takes_uploads_too(part: TieredPartition) -> None:
    remote = MemoryStore("memory://r")
    done = bring(part, part.plan().runs[0], remote)
    assert [stored.name for stored in remote.list("")] == [part.table.path(done.segment)]
