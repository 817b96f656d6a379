"""Other programs optimize, vacuum and restore the table of a tiered topic: reads and jobs continue, heal repairs
it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stratalog.partitions.paths import DataName
from stratalog.tiering.remote_file import read_remote
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, codes, the_failure
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed, lying
from tests.unit.test_upkeep_bad_remote import table_of

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """A topic of four segments, all of them tiered; the brokers hold the last one."""
    made = LiveCluster(tmp_path)
    made.tiered()
    made.fill("abcd")
    made.tier_and_drop()
    return made


def vacuumed(live: LiveCluster) -> None:
    table_of(live).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def seen(live: LiveCluster) -> list[int]:
    """The offsets that any reader of Delta sees."""
    return sorted(pa.table(table_of(live).to_pyarrow_table(columns=["offset"]))["offset"].to_pylist())


def test_reads_and_jobs_continue_after_an_optimize_and_say_who_did_it(live: LiveCluster) -> None:
    table_of(live).optimize.compact()
    assert live.read() == {0: list("abcd")}
    for report in (
        live.cluster.verify(deep=True),
        live.cluster.describe("t"),
        live.cluster.heal(dry_run=True),
        live.cluster.tier(dry_run=True),
        live.cluster.retain(dry_run=True),
    ):
        report.raise_for_failures()
        (note,) = report.notes
        assert note.startswith(
            "t: another writer has rewritten the table, with the same records (OPTIMIZE at version"
        )
        assert "with delta-rs" in note
    assert len(listed(live)) == 1, "those that only look change nothing"


@pytest.mark.parametrize("job", ["heal", "tier", "retain"])
def test_heal_corrects_the_table_and_so_do_the_operations_that_rely_on_it(live: LiveCluster, job: str) -> None:
    """The correction comes before a broker drops files that anyone's VACUUM may delete, and before anything is
    added.
    """
    before = listed(live)
    table_of(live).optimize.compact()
    version = table_of(live).version()
    report = getattr(live.cluster, job)().raise_for_failures()
    assert any("OPTIMIZE" in note for note in report.notes)
    assert listed(live) == before
    assert table_of(live).version() == version + 1
    vacuumed(live)
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.cluster.heal().notes == []
    assert_tables_and_folders_agree(live)


def test_heal_reports_in_a_row_what_it_corrected(live: LiveCluster) -> None:
    table_of(live).optimize.compact()
    for outcome, dry_run in (("planned", True), ("repaired", False)):
        (row,) = live.cluster.heal(dry_run=dry_run).raise_for_failures().rows
        assert (row["topic"], row["damage"], row["outcome"]) == ("t", "table rewritten by others", outcome)
    assert live.cluster.heal().raise_for_failures().rows == []


def test_tiering_continues_after_an_optimize(live: LiveCluster) -> None:
    for _ in range(3):
        table_of(live).optimize.compact()
        live.fill("xy")
        live.tier_and_drop()
    assert live.read() == {0: list("abcdxyxyxy")}
    assert seen(live) == list(range(10))
    live.cluster.vacuum().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_new_broker_and_an_election_continue_after_an_optimize(live: LiveCluster) -> None:
    table_of(live).optimize.compact()
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 1}).raise_for_failures()
    live.cluster.merge().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: list("bcd")}
    assert seen(live) == [1, 2, 3]


def test_our_vacuum_keeps_the_segments_that_an_optimize_has_removed(live: LiveCluster) -> None:
    segments = lying(live)
    table_of(live).optimize.compact()
    live.clock.advance_ms(48 * HOUR_MS)
    assert live.cluster.vacuum().raise_for_failures().rows == []
    assert lying(live) == segments
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_write_of_data_stops_the_topic_with_the_remedy_and_restoring_repairs_it(live: LiveCluster) -> None:
    before = listed(live)
    version = table_of(live).version()
    table_of(live).delete("offset = 3")
    live.fill("e")
    for report in (
        live.cluster.tier(check=False),
        live.cluster.retain(check=False),
        live.cluster.verify(),
        live.cluster.heal(check=False),
    ):
        assert codes(report) == {"CORRUPT_MESSAGE": 1}
        assert "DELETE at version" in the_failure(report)
        assert f".restore({version})" in the_failure(report)
    assert table_of(live).version() == version + 1, "nobody has committed anything"
    table_of(live).restore(version)
    assert listed(live) == before
    live.cluster.tier().raise_for_failures()
    assert live.read() == {0: list("abcde")}


# ------------------------------------------------------------------------------ foreign vacuums


def all_tiered_and_held(folder: Path) -> LiveCluster:
    """Four segments, all of them tiered and still on the brokers."""
    live = LiveCluster(folder)
    live.tiered(local_retention_bytes="-2")
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    return live


def test_segments_that_replicas_still_have_are_uploaded_again_after_a_foreign_vacuum(tmp_path: Path) -> None:
    live = all_tiered_and_held(tmp_path)
    before = listed(live)
    table_of(live).optimize.compact()
    vacuumed(live)
    assert lying(live) == set()
    report = live.cluster.tier(check=False)
    assert codes(report) == {"REMOTE_OBJECT_MISSING": 1}
    assert "run heal to rebuild them from replicas or from the foreign files" in the_failure(report)
    live.cluster.heal().raise_for_failures()
    assert listed(live) == before
    live.fill("e")
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcde")}
    assert seen(live) == list(range(5))


def test_segments_that_no_replica_has_are_rebuilt_from_the_foreign_files_that_replaced_them(
    live: LiveCluster,
) -> None:
    """There was no tiering for a week; the compacted file is the only copy of three segments."""
    follower = live.followers()[0]
    before = DeltaTable(table_of(live).table_uri).to_pyarrow_table().sort_by("offset")
    table_of(live).optimize.compact()
    vacuumed(live)
    assert live.cluster.verify().failures
    rows = live.cluster.heal(dry_run=True).rows
    assert [row["source"] for row in rows if row["partition"] == 0] == ["table"] * 3 + ["broker-1"]
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcd")}
    assert DeltaTable(table_of(live).table_uri).to_pyarrow_table().sort_by("offset") == before
    assert table_of(live).history(1)[0]["userMetadata"].startswith("undo rewrite: reverts")
    live.fill("e")
    live.cluster.tier().raise_for_failures()
    live.wipe(follower)
    live.cluster.bootstrap(follower).raise_for_failures()
    assert live.read() == {0: list("abcde")}


def test_a_foreign_file_whose_records_take_gigabytes_is_refused_by_name(live: LiveCluster) -> None:
    """A writer of the remote tier may replace the files that others wrote."""
    table_of(live).optimize.compact()
    vacuumed(live)
    (path,) = (file for file in live.remote.rglob("*.parquet") if "_delta_log" not in file.parts)
    sound = path.read_bytes()
    rows = pq.read_table(pa.BufferReader(sound)).slice(0, 1)
    long = pa.array([bytes(1 << 20)], pa.binary()).dictionary_encode()
    rows = rows.set_column(rows.schema.get_field_index("value"), "value", long)
    pq.write_table(pa.concat_tables([rows] * 2000).combine_chunks(), path, compression="zstd", store_schema=False)
    for entry in live.remote.glob("t-*/_delta_log/*.json"):
        entry.write_text(entry.read_text().replace(f'"size":{len(sound)},', f'"size":{path.stat().st_size},'))
    before = live.in_remote()
    report = live.cluster.heal(check=False)
    assert [row["outcome"] for row in report.rows if row["source"] == "table"] == ["left alone"] * 3
    assert any("bytes in memory" in note and path.name in note for note in report.notes)
    assert all(live.in_remote()[name] == data for name, data in before.items())


def test_a_producer_is_known_where_the_end_of_the_remote_log_was_rebuilt_from_the_table(tmp_path: Path) -> None:
    """The leader has the producer state that the records lack: a broker that begins there still recognizes
    duplicates.
    """
    live = LiveCluster(tmp_path)
    live.tiered(local_retention_bytes="0")
    live.cluster.topics.alter_configs(None, {"follower.fetch.last.tiered.offset.enable": "true"})
    live.fill("ab")
    live.append(["c"], producer="p", sequence=7).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.fill("d")
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert live.log(live.leader()).local_start == 3
    table_of(live).optimize.compact()
    vacuumed(live)
    live.cluster.heal().raise_for_failures()
    table = ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("t"))
    last = table.load().of_partition(0)[-1]
    assert read_remote(table.remote, table.folder, last).footer.producers["p"].sequence == 7
    heir = live.followers()[0]
    live.wipe(heir)
    live.cluster.bootstrap(heir).raise_for_failures()
    live.cluster.elect("t", leader=heir).raise_for_failures()
    assert live.append(["c"], producer="p", sequence=7).raise_for_failures().rows[0]["outcome"] == "duplicate"
    assert live.read() == {0: list("abcd")}


def test_tiering_between_the_reading_and_the_commit_of_an_optimize_keeps_every_offset_once(
    live: LiveCluster,
) -> None:
    """The rewrite does not know later additions, and leaves them unchanged."""
    theirs = table_of(live)
    live.fill("e")
    live.cluster.tier().raise_for_failures()
    theirs.optimize.compact()
    assert seen(live) == list(range(5))
    live.cluster.tier().raise_for_failures()
    assert listed(live) <= lying(live)
    assert seen(live) == list(range(5))


@pytest.mark.parametrize("job", ["heal", "tier", "retain"])
def test_an_optimize_of_what_was_reverted_meanwhile_is_reverted_too(live: LiveCluster, job: str) -> None:
    """delta-rs commits it, although it removes a file that the table no longer lists."""
    theirs = table_of(live)
    live.fill("e")
    live.cluster.tier().raise_for_failures()
    theirs.optimize.compact()
    theirs = table_of(live)
    live.cluster.heal().raise_for_failures()
    before = listed(live)
    theirs.optimize.compact()
    assert seen(live) == [0, 0, 1, 1, 2, 2, 3, 3, 4], "if it conflicts now, delta-rs has fixed it"
    assert live.read() == {0: list("abcde")}
    (note,) = live.cluster.verify(deep=True).raise_for_failures().notes
    assert "but kept an older version of the table, so that records occur twice (OPTIMIZE at version" in note
    getattr(live.cluster, job)().raise_for_failures()
    assert listed(live) == before
    assert live.cluster.heal().notes == []
    assert live.read() == {0: list("abcde")}
    assert seen(live) == list(range(5))


def test_two_optimizers_at_once_do_not_stop_the_topic(live: LiveCluster) -> None:
    """Both optimizers start from the same version: the second one removes files that the first one has already
    removed.
    """
    first, second = table_of(live), table_of(live)
    first.optimize.compact()
    second.optimize.compact()
    assert seen(live) == sorted([*range(4), *range(4)])
    live.fill("e")
    live.cluster.tier().raise_for_failures()
    assert seen(live) == list(range(5))


# --------------------------------------------------------------------------- an older copy is put back


def with_an_older_copy(folder: Path, **configs: str) -> LiveCluster:
    """The remote tier has the first two of six segments again; the brokers' logs begin at offset 5."""
    live = LiveCluster(folder)
    live.tiered(**configs)
    live.fill("ab")
    live.cluster.tier().raise_for_failures()
    shutil.copytree(live.remote, folder / "older")
    live.fill("cdef")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    shutil.rmtree(live.remote)
    (folder / "older").rename(live.remote)
    assert live.log(live.leader()).local_start == 5
    return live


def forget(live: LiveCluster, *offsets: int) -> None:
    """Delete the files that begin at these offsets from every replica."""
    names = {str(DataName(offset, None, 1)) for offset in offsets}
    for broker in (1, 2, 3):
        replica = live.replica(broker)
        replica.store.delete([replica.path(name) for name in names])


def test_segments_that_replicas_still_have_are_uploaded_again_to_an_older_copy_of_the_remote_tier(
    tmp_path: Path,
) -> None:
    """The replicas still have the segments because the delay before their deletion is not over."""
    live = with_an_older_copy(tmp_path, file_delete_delay_ms="3600000")
    failure = the_failure(live.cluster.tier(check=False))
    assert "ends at offset 2, but the leader's log begins at 5" in failure
    assert "heal uploads to an older copy" in failure
    (row,) = live.cluster.heal(dry_run=True, check=False).rows
    assert (row["damage"], row["start"], row["end"], row["outcome"]) == ("missing", 2, 5, "planned")
    (row,) = live.cluster.heal().raise_for_failures().rows
    assert row["outcome"] == "repaired"
    assert {row["remote_end"] for row in live.cluster.describe("t").rows} == {5}
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcdef")}


def test_records_without_a_copy_are_named_and_given_up_as_the_error_says(tmp_path: Path) -> None:
    """delete_records before the local start, then tier; afterwards a broker can be bootstrapped again."""
    live = with_an_older_copy(tmp_path, file_delete_delay_ms="3600000")
    forget(live, 3, 4)
    follower = live.followers()[0]
    live.wipe(follower)
    failure = the_failure(live.cluster.bootstrap(follower, check=False))
    assert "run heal" in failure
    assert "delete_records before offset 5. Afterwards, run tier" in failure
    report = live.cluster.heal(check=False)
    assert not report.ok
    assert any("no replica has offsets [3, 5) any more" in note for note in report.notes)
    live.cluster.topics.delete_records("t", {0: 5}).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.bootstrap(follower).raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: ["f"]}


def test_segments_above_the_records_that_are_given_up_are_uploaded_again(tmp_path: Path) -> None:
    live = with_an_older_copy(tmp_path, file_delete_delay_ms="3600000")
    forget(live, 3)
    report = live.cluster.heal(check=False)
    assert any("no replica has offsets [3, 4) any more" in note for note in report.notes)
    live.cluster.topics.delete_records("t", {0: 4}).raise_for_failures()
    live.cluster.heal().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: ["e", "f"]}


def test_an_empty_remote_is_not_filled_by_heal(tmp_path: Path) -> None:
    """Another volume may be mounted there: files written to it would hide the tiered ones."""
    live = with_an_older_copy(tmp_path, file_delete_delay_ms="3600000")
    shutil.rmtree(next(live.remote.glob("t-*")))
    assert "check that the right remote tier is mounted" in the_failure(live.cluster.heal(check=False))
    assert not list(live.remote.glob("t-*"))
