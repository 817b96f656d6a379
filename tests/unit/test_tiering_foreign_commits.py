"""Commits of other programs to the table of a topic: rewrites are understood and reverted, writes of data
refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import CorruptionError, RemoteObjectMissingError
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.store import StoreOptions
from stratalog.tiering import foreign_commits
from stratalog.tiering.copier import upload
from stratalog.tiering.delta_table import hand_over
from stratalog.tiering.foreign_commits import APPLICATION, parse_commit
from stratalog.tiering.remote_change import Rebuilt
from stratalog.tiering.remote_objects import find_litter
from tests.unit.foreign_table import compacted, deleted, delta, listed, offsets, ours, spans
from tests.unit.tiering_harness import TieredPartition, table_in, three_segments


@pytest.fixture
def part(tmp_path: Path) -> TieredPartition:
    return three_segments(tmp_path)


def test_more_commits_of_others_than_are_read_one_by_one_stop_nothing(
    part: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final list of the table is sufficient if it equals the log."""
    monkeypatch.setattr(foreign_commits, "MOST_COMMITS", 3)
    for days in range(5):
        delta(part).alter.set_table_properties({"delta.logRetentionDuration": f"interval {days + 1} days"})
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]
    version = delta(part).version()
    delta(part).optimize.compact()
    with pytest.raises(CorruptionError):
        part.table.load()
    delta(part).restore(version)
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]


def test_a_writer_version_that_delta_does_not_have_is_named_before_anything_is_committed(
    part: TieredPartition,
) -> None:
    """delta-rs would report twenty times that other writers were faster."""
    log = Path(part.table.uri) / "_delta_log"
    (log / f"{2:020d}.json").write_text('{"protocol":{"minReaderVersion":1,"minWriterVersion":99}}\n')
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]
    part.append(2)
    with pytest.raises(CorruptionError, match="minWriterVersion 99") as raised:
        part.tier()
    assert "backup" in str(raised.value)
    assert delta(part).version() == 2


@pytest.mark.parametrize("kind", ["p", "u"])
def test_a_deletion_vector_is_refused_before_anybody_opens_it(
    part: TieredPartition, tmp_path: Path, kind: str
) -> None:
    """It names a FIFO, which would block its reader forever."""
    os.mkfifo(tmp_path / "fifo")
    log = Path(part.table.uri) / "_delta_log"
    listed_files = [
        json.loads(line)["add"] for line in (log / f"{1:020d}.json").read_text().splitlines() if '"add"' in line
    ]
    vector = {
        "storageType": kind,
        "pathOrInlineDv": f"file://{tmp_path}/fifo",
        "sizeInBytes": 40,
        "cardinality": 1,
    }
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        *({"add": {**each, "deletionVector": {**vector, "offset": 1}}} for each in listed_files),
    ]
    (log / f"{2:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    with pytest.raises(CorruptionError, match="deletionVectors"):
        part.table.load()


# --------------------------------------------------------------------------------- rewrites


def ordered(part: TieredPartition) -> None:
    delta(part).optimize.z_order(["offset"])


def compacted_and_ordered(part: TieredPartition) -> None:
    compacted(part)
    ordered(part)


def restored_and_compacted_again(part: TieredPartition) -> None:
    compacted(part)
    delta(part).restore(1)
    compacted(part)


def with_properties_and_columns_besides(part: TieredPartition) -> None:
    compacted(part)
    delta(part).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    delta(part).alter.set_table_properties({"delta.checkpointInterval": "7"})


def with_a_checkpoint(part: TieredPartition) -> None:
    compacted(part)
    delta(part).create_checkpoint()


REWRITES = [
    compacted,
    ordered,
    compacted_and_ordered,
    restored_and_compacted_again,
    with_properties_and_columns_besides,
    with_a_checkpoint,
]


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_a_rewrite_without_a_change_of_data_leaves_the_remote_log_what_it_was(
    part: TieredPartition, rewrite: Callable[[TieredPartition], None]
) -> None:
    before = part.table.load()
    rewrite(part)
    log = part.table.load()
    assert log.segments == before.segments
    assert log.version == delta(part).version()
    assert log.rewrite is not None
    assert len(log.rewrite.lacking) == 3
    assert len(log.rewrite.files) == 1


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
@pytest.mark.slow
def test_it_is_reverted_and_the_table_lists_every_offset_once_all_the_while(
    part: TieredPartition, rewrite: Callable[[TieredPartition], None]
) -> None:
    segments = ours(part)
    rewrite(part)
    version = delta(part).version()
    log = part.table.undo_rewrites()
    assert (log.version, log.rewrite) == (version + 1, None)
    assert listed(part) == segments
    for each in range(1, log.version + 1):
        assert offsets(part, each) == list(range(12))
    assert part.table.undo_rewrites().version == version + 1, "nothing is left to do"


def test_the_commit_that_reverts_a_rewrite_changes_no_data_and_says_so(part: TieredPartition) -> None:
    """A streaming reader of the table gets no record twice."""
    compacted(part)
    part.table.undo_rewrites()
    entry = (Path(part.table.uri) / "_delta_log" / f"{3:020d}.json").read_bytes()
    commit = parse_commit(3, entry, "it")
    assert not commit.changes_data
    assert (len(commit.added), len(commit.removed)) == (3, 1)
    assert "rewritten" in delta(part).history(1)[0]["userMetadata"]


def test_segments_are_listed_again_as_they_were_with_their_statistics(part: TieredPartition) -> None:
    def actions() -> list[dict[str, object]]:
        return sorted(pa.table(delta(part).get_add_actions()).to_pylist(), key=lambda row: str(row["path"]))

    before = actions()
    compacted(part)
    part.table.undo_rewrites()
    assert actions() == before


def test_tiering_continues_after_a_rewrite(part: TieredPartition) -> None:
    """In two versions: the rewrite is reverted, then the new segments are added."""
    compacted(part)
    part.append(2, 2)
    assert part.tier().log.version == 4
    assert spans(part) == [(0, 3), (3, 7), (7, 12), (12, 14), (14, 16)]
    assert listed(part) == ours(part)
    assert offsets(part, 3) == list(range(12))
    assert offsets(part, 4) == list(range(16))


def test_expiry_continues_after_a_rewrite(part: TieredPartition) -> None:
    first = part.table.load().of_partition(0)[0]
    compacted(part)
    part.table.commit((), [first])
    assert spans(part) == [(3, 7), (7, 12)]
    assert offsets(part) == list(range(3, 12))


def test_the_user_who_rewrote_it_is_named(part: TieredPartition) -> None:
    log = Path(part.table.uri) / "_delta_log"
    compacted(part)
    entry = log / f"{2:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    lines[0]["commitInfo"] |= {"userName": "ada", "timestamp": 0, "engineInfo": "Apache-Spark/4.2.0"}
    entry.write_text("\n".join(map(json.dumps, lines)))
    rewrite = part.table.load().rewrite
    assert str(rewrite) == (
        "another writer has rewritten the table, with the same records (OPTIMIZE at version 2 by ada with "
        "Apache-Spark/4.2.0 on 1970-01-01T00:00:00+00:00): 1 foreign file replaces 3 segments, which any "
        "VACUUM may delete"
    )


def test_versions_without_files_are_no_rewrite(part: TieredPartition) -> None:
    delta(part).alter.set_table_properties({"delta.checkpointInterval": "7"})
    delta(part).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    assert part.table.load().rewrite is None
    assert part.table.undo_rewrites().version == 3


def test_a_table_that_was_restored_to_the_log_is_the_log(part: TieredPartition) -> None:
    compacted(part)
    delta(part).delete("offset = 4")
    delta(part).restore(1)
    log = part.table.load()
    assert (log.rewrite, log.version, spans(part)) == (None, 4, [(0, 3), (3, 7), (7, 12)])


def test_an_optimize_that_raced_with_tiering_is_reverted_by_the_next_commit(part: TieredPartition) -> None:
    """It rebases over the appends, and is committed after them."""
    late = delta(part)
    part.append(2)
    part.tier()
    late.optimize.compact()
    assert listed(part) != ours(part)
    assert spans(part) == [(0, 3), (3, 7), (7, 12), (12, 14)]
    part.append(2)
    part.tier()
    assert offsets(part) == list(range(16))
    assert listed(part) == ours(part)


@pytest.mark.slow
def test_any_order_of_optimizes_vacuums_of_old_files_and_tier_runs_keeps_the_log(tmp_path: Path) -> None:
    """Thirty random steps: after each of them the log has every offset once, for all readers."""
    for seed in range(5):
        rng = random.Random(seed)
        (tmp_path / str(seed)).mkdir()
        part = TieredPartition(tmp_path / str(seed))
        part.append(2)
        part.tier()
        for _ in range(30):
            step = rng.choice(["append", "tier", "compact", "order", "undo", "vacuum", "checkpoint"])
            match step:
                case "append":
                    part.append(rng.randint(1, 3))
                case "tier":
                    part.tier()
                case "compact":
                    compacted(part)
                case "order":
                    ordered(part)
                case "undo":
                    part.table.undo_rewrites()
                case "vacuum":
                    part.table.vacuum(0)
                case "checkpoint":
                    delta(part).create_checkpoint()
            log = part.table.load()
            part.table.check_objects(log)
            assert offsets(part) == list(range(log.end(0) or 0)), (seed, step)


# ------------------------------------------------------------------- vacuums, logs that are cut


def test_our_vacuum_deletes_no_segment_that_a_rewrite_has_removed(part: TieredPartition) -> None:
    compacted(part)
    assert part.table.vacuum(0) == []
    log, removed = part.table.load_with_removed(0)
    litter = find_litter(
        part.table.objects(), log, removed, log_starts={}, lineages={}, tiered=True, before_ms=2**62
    )
    assert litter.litter == {}
    part.table.undo_rewrites()
    assert offsets(part) == list(range(12))


def test_files_of_others_go_a_day_after_they_left_the_table(part: TieredPartition) -> None:
    compacted(part)
    (foreign,) = listed(part)
    part.table.undo_rewrites()
    log, removed = part.table.load_with_removed(0)
    objects = part.table.objects()
    made_ms = objects.at(foreign).modified_ms
    for before_ms, litter in ((made_ms, {}), (made_ms + 1, {foreign: "of others"})):
        found = find_litter(objects, log, removed, log_starts={}, lineages={}, tiered=True, before_ms=before_ms)
        assert found.litter == litter


def test_a_rewrite_is_not_reverted_if_a_foreign_vacuum_has_deleted_the_replaced_segments(
    part: TieredPartition,
) -> None:
    """They are the only copies of its records: every reader of Delta still has them."""
    compacted(part)
    delta(part).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    for call in (part.table.undo_rewrites, lambda: part.table.commit((), part.table.load().of_partition(0)[:1])):
        with pytest.raises(
            RemoteObjectMissingError,
            match=r"OPTIMIZE at version 2.*3 of the replaced segments no longer exist .the first is 0/0.*heal",
        ):
            call()
    assert offsets(part) == list(range(12))
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]


def test_a_rebuilt_segment_enters_the_table_in_the_version_that_reverts_the_rewrite(part: TieredPartition) -> None:
    """The middle segment is permanently gone; the replica has its records in a file with other boundaries."""
    first, lost, last = part.table.load().of_partition(0)
    compacted(part)
    Path(part.table.uri, lost.path).unlink()
    run = Run(part.log.chain[1:])
    rebuilt = Rebuilt(
        (lost, last), (upload(part.leader, run, part.remote, part.table.folder, compression="zstd"),), 0
    )
    part.table.replace([rebuilt])
    assert delta(part).version() == 3
    assert listed(part) == {first.path, rebuilt.uploads[0].segment.path}
    assert offsets(part) == list(range(12))
    entry = (Path(part.table.uri) / "_delta_log" / f"{3:020d}.json").read_bytes()
    assert not parse_commit(3, entry, "it").changes_data
    assert part.table.load().rewrite is None


def test_a_log_that_does_not_reach_back_says_so_where_that_matters(part: TieredPartition) -> None:
    log = Path(part.table.uri) / "_delta_log"

    def cut() -> None:
        delta(part).create_checkpoint()
        for entry in sorted(log.glob("*.json"))[:-1]:
            entry.unlink()

    delta(part).alter.set_table_properties({"delta.checkpointInterval": "7"})
    delta(part).alter.set_table_properties({"delta.checkpointInterval": "8"})
    cut()
    assert spans(part) == [(0, 3), (3, 7), (7, 12)], "its files are ours, and make a log"
    compacted(part)
    delta(part).alter.set_table_properties({"delta.checkpointInterval": "9"})
    cut()
    with pytest.raises(CorruptionError, match=r"is not a segment.*does not reach back"):
        part.table.load()


def test_changes_of_data_are_refused_even_if_the_log_no_longer_reaches_back_to_our_last_commit(
    part: TieredPartition,
) -> None:
    """Log cleanup has deleted an entry between the two. What came after it is known, and must not be ignored."""
    log = Path(part.table.uri) / "_delta_log"
    for number in (7, 8):
        delta(part).alter.set_table_properties({"delta.checkpointInterval": str(number)})
    delta(part).create_checkpoint()
    for entry in sorted(log.glob("*.json"))[:-1]:
        entry.unlink()
    delta(part).delete("offset >= 7")  # removes a segment, and adds no file
    with pytest.raises(CorruptionError, match=r"DELETE at version 4.*restore\(3\)"):
        part.table.load()
    delta(part).restore(3)
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]
    compacted(part)
    assert part.table.load().rewrite is not None
    part.table.undo_rewrites()
    assert offsets(part) == list(range(12))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_our_own_commits_are_recognized_after_delta_has_forgotten_their_transactions(
    part: TieredPartition, checkpoint: bool
) -> None:
    """With ``delta.setTransactionRetentionDuration``, delta-rs no longer shows a transaction. Then our commits
    seemed foreign, and the error said to restore the table to its version without segments."""
    retention = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    delta(part).alter.set_table_properties(retention, raise_if_not_exists=False)
    if checkpoint:
        delta(part).create_checkpoint()
    assert delta(part).transaction_version(APPLICATION) is None
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]
    part.append(2)
    part.tier()
    compacted(part)
    assert part.table.load().rewrite is not None
    part.table.undo_rewrites()
    assert spans(part) == [(0, 3), (3, 7), (7, 12), (12, 14)]
    deleted(part)
    with pytest.raises(CorruptionError, match=r"DELETE at version 6.*restore\(5\)"):
        part.table.load()


def test_the_history_is_deleted_after_delta_has_forgotten_our_transactions(part: TieredPartition) -> None:
    """An erasure made twenty versions, each of which seemed to be another writer's."""
    retention = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    delta(part).alter.set_table_properties(retention, raise_if_not_exists=False)
    assert part.table.delete_history() == 3
    assert part.table.delete_history() == 3
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]


def test_the_log_of_a_rewritten_table_is_not_cut_by_us(part: TieredPartition) -> None:
    """The version shows the former content."""
    compacted(part)
    log = Path(part.table.uri) / "_delta_log"
    for path in log.iterdir():
        os.utime(path, (1, 1))
    part.table.clean_log()
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]


# --------------------------------------------------------------------------- and the rest of it


def test_a_table_that_is_handed_over_during_a_rewrite_is_corrected_by_its_new_cluster(
    part: TieredPartition,
) -> None:
    compacted(part)
    assert hand_over(part.table, "c", "d", StoreOptions(), ManualClock())
    mine = table_in(part.remote, cluster_id="d")
    assert mine.load().rewrite is not None
    mine.undo_rewrites()
    assert offsets(part) == list(range(12))


def test_a_table_that_is_handed_over_stays_so_when_it_is_restored(part: TieredPartition) -> None:
    assert hand_over(part.table, "c", "d", StoreOptions(), ManualClock())
    mine = table_in(part.remote, cluster_id="d")
    deleted(part)
    with pytest.raises(CorruptionError, match=r"restore\(2\)"):
        mine.load()
    delta(part).restore(2)
    assert mine.load().end(0) == 12


def test_a_commit_without_our_transaction_does_not_hide_what_others_did(part: TieredPartition) -> None:
    compacted(part)
    part.table.mark_deleted(True)
    assert part.table.load().rewrite is not None


def test_a_table_that_others_have_upgraded_for_writers_can_be_read_and_says_why_nothing_is_added(
    part: TieredPartition,
) -> None:
    """Like ``delta.enableRowTracking``, or CLUSTER BY: features that only writers must know."""
    delta(part).alter.add_feature(
        [TableFeatures.RowTracking, TableFeatures.DomainMetadata], allow_protocol_versions_increase=True
    )
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]
    part.append(2)
    with pytest.raises(CorruptionError, match=r"upgraded by another writer, to domainMetadata, rowTracking.*DROP"):
        part.tier()


def test_an_append_only_table_is_added_to_and_says_why_nothing_expires(part: TieredPartition) -> None:
    """The table's owner may not know that retention removes files from it."""
    first = part.table.load().of_partition(0)[0]
    delta(part).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(CorruptionError, match="made append-only by another writer: 0/0"):
        part.table.commit((), [first])
    compacted(part)
    part.append(2)
    part.tier()
    assert offsets(part) == list(range(14))
