"""Tiering and retention on a whole cluster (KIP-405): copy, commit, delete; several drivers; lost objects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from tests.unit.cluster_harness import Dying, LiveCluster, codes, remote_files, rows_of, the_failure
from tests.unit.remote_folder import topic_folders
from tests.unit.together import together

HOUR_MS = 3_600_000
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
"""Configs that switch tiering off and delete the remote data (KIP-950)."""


def offsets_in(live: LiveCluster, topic: str = "t") -> list[int]:
    """Offsets of partition 0 in the remote table, as any reader of Delta sees them."""
    folder = f"{topic}-{live.cluster.image.topic(topic).topic_id}"
    rows = DeltaTable(str(live.remote / folder)).to_pyarrow_table(columns=["partition", "offset"])
    return sorted(rows.filter(pc.equal(rows["partition"], 0))["offset"].to_pylist())


@pytest.mark.slow
def test_a_record_waits_no_longer_than_segment_ms_however_often_it_is_merged(tmp_path: Path) -> None:
    """Each merge makes a younger file, so tiering uses the time of the first append in the file."""
    live = LiveCluster(tmp_path)
    live.topic(remote_storage_enable="true", segment_ms=str(HOUR_MS), segment_merge_min_files="2")
    born_ms = live.clock.now_ms()
    for number in range(6):
        live.append([f"v{number}"]).raise_for_failures()
        live.clock.advance_ms(HOUR_MS // 6)
        live.cluster.merge().raise_for_failures()
        if number < 5:
            live.cluster.tier().raise_for_failures()
            assert offsets_in(live) == []
    replica = live.replica(live.leader())
    (link,) = replica.log().chain
    footer = replica.footer(link.file)
    assert (footer.oldest_ms, footer.created_ms) == (born_ms, born_ms + 5 * (HOUR_MS // 6))
    assert link.file.object.modified_ms == live.clock.now_ms()
    described = live.cluster.describe()
    assert set(rows_of(described, "copy_lag_records", "copy_lag_ms")) == {(6, HOUR_MS)}
    live.cluster.tier().raise_for_failures()
    assert offsets_in(live) == [*range(6)]
    assert set(rows_of(live.cluster.describe(), "copy_lag_records", "copy_lag_ms")) == {(0, 0)}
    live.cluster.verify(deep=True).raise_for_failures()


# --------------------------------------------------------------------------------------- tier


@pytest.mark.slow
def test_the_remote_table_holds_each_offset_once_however_often_tier_runs(live: LiveCluster) -> None:
    """Protocol, section 4, Merge: "the remote table holds every offset once"."""
    live.tiered()
    for batch in ("abc", "de", "f"):
        live.fill(batch)
        live.cluster.tier().raise_for_failures()
        idle = live.cluster.tier().raise_for_failures()
        assert (idle.totals["uploaded_files"], idle.totals["uploaded_bytes"]) == (0, 0)
    assert offsets_in(live) == list(range(6))


def test_only_what_is_below_the_high_watermark_is_tiered(live: LiveCluster) -> None:
    """Uncommitted records may still be truncated. (Kafka: up to the last stable offset.)"""
    live.tiered()
    live.fill("ab")
    live.append(["c"], acks="leader")
    assert rows_of(live.cluster.tier(), "remote_end") == [(2,)]
    live.cluster.replicate().raise_for_failures()
    assert rows_of(live.cluster.tier(), "remote_end") == [(3,)]


def test_the_active_segment_is_not_tiered_before_it_is_sealed(live: LiveCluster) -> None:
    live.tiered(segment_bytes="1000000", segment_ms="60000")
    live.fill("abc")
    report = live.cluster.tier()
    assert rows_of(report, "uploaded_files", "remote_end") == [(0, None)]
    assert report.rows[0]["pending_bytes"] == sum(map(len, live.data(1).values()))
    live.clock.advance_ms(120_000)
    assert rows_of(live.cluster.tier(), "uploaded_files", "remote_end") == [(1, 3)]
    assert offsets_in(live) == [0, 1, 2]


def test_a_topic_without_remote_storage_stays_local(live: LiveCluster) -> None:
    live.topic(segment_bytes="1")
    live.fill("ab")
    assert live.cluster.tier().raise_for_failures().rows == []
    assert live.in_remote() == {}


def test_a_topic_is_tiered_only_where_the_cluster_has_a_remote(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    text = live.file.read_text()
    live.file.write_text(text.replace('remote = "remote"\n', ""))
    with pytest.raises(InvalidCallError, match="remote"):
        live.driver().topics.create("t", configs={"remote.storage.enable": "true"})


def test_a_driver_that_dies_between_upload_and_commit_leaves_files_that_the_next_run_takes(
    live: LiveCluster,
) -> None:
    """KIP-405, COPY_SEGMENT_STARTED without COPY_SEGMENT_FINISHED."""
    live.tiered()
    live.fill("abc")
    with pytest.raises(KeyboardInterrupt):
        live.driver(progress=Dying()).tier()
    assert len(remote_files(live)) == 3
    assert offsets_in(live) == []
    live.cluster.retain().raise_for_failures()
    assert live.log(1).local_start == 0, "what is not committed does not count as remote"
    report = live.cluster.tier().raise_for_failures()
    assert (report.totals["uploaded_files"], report.totals["uploaded_bytes"]) == (3, 0)
    assert offsets_in(live) == [0, 1, 2]


@pytest.mark.slow
def test_uploads_of_appends_count_after_the_appends_were_merged(live: LiveCluster) -> None:
    """A driver crashes between upload and commit, and a merge of the same run happens before the next one: the
    leader's merged segment has the remote file's name, and the same bytes, because merges are reproducible."""
    live.tiered(segment_bytes="1000000", segment_ms="60000")
    live.fill("abc")
    live.clock.advance_ms(120_000)
    with pytest.raises(KeyboardInterrupt):
        live.driver(progress=Dying()).tier()
    live.clock.advance_ms(1)
    assert rows_of(live.cluster.merge(), "segments") == [(1,)]
    assert len(remote_files(live)) == 1
    (name,) = live.data(1)
    assert remote_files(live)[0].name == name
    assert remote_files(live)[0].read_bytes() == live.data(1)[name]
    live.clock.advance_ms(120_000)
    live.cluster.tier().raise_for_failures()
    assert offsets_in(live) == [0, 1, 2]
    live.cluster.replicate().raise_for_failures()
    live.cluster.verify().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: list("abc")}


@pytest.mark.slow
def test_two_drivers_that_tier_at_once_tier_each_offset_once(live: LiveCluster) -> None:
    """A commit that loses the race drops the segments that the winner has committed."""
    live.tiered()
    drivers = [live.driver(), live.driver()]
    for _ in range(3):
        live.fill("abcd")
        reports = [report.raise_for_failures() for report in together(*(driver.tier for driver in drivers))]
        assert sum(int(str(report.totals["uploaded_files"])) for report in reports) == 4, "one of them counts it"
        end = live.log(1).log_end
        assert offsets_in(live) == list(range(end))
    live.cluster.verify().raise_for_failures()


@pytest.mark.slow
def test_drivers_that_tier_and_drop_while_others_read_leave_no_gap(live: LiveCluster) -> None:
    """Records move between the tiers while a read or a tier run is planned: neither considers them lost."""
    live.tiered()
    live.fill("ab")
    tiering, dropping = live.driver(), live.driver()
    reading = live.cluster
    seen: list[int] = []

    def read() -> Report:
        for _ in range(4):
            seen.append(sum(part.end - part.start for part in reading.plan_read("t")))
        return reading.describe()

    def drop() -> Report:
        dropping.tier().raise_for_failures()
        return dropping.retain()

    count = 2
    for _ in range(4):
        live.fill("cd")
        count += 2
        for report in together(tiering.tier, drop, read):
            report.raise_for_failures()
        assert set(seen) == {count}
        seen.clear()
    assert live.read()[0] == list("ab" + "cd" * 4)


# ------------------------------------------------------------------------------ local retention


@pytest.mark.slow
def test_local_retention_drops_what_is_tiered_and_reads_continue(live: LiveCluster) -> None:
    """KIP-405, "Log retention": local.retention.* apply to the records in the remote log."""
    live.tiered()
    live.fill("abcdef")
    live.cluster.retain().raise_for_failures()
    assert live.log(1).local_start == 0, "nothing is tiered yet"
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()  # registers the new local start
    live.cluster.retain().raise_for_failures()  # deletes below it
    for broker in (1, 2, 3):
        log = live.log(broker)
        assert (log.local_start, len(log.listing.data)) == (5, 1), "the active file stays"
    live.fill("gh")
    assert live.read() == {0: list("abcdefgh")}
    assert live.read(start=2, end=7) == {0: list("cdefg")}
    live.cluster.verify().raise_for_failures()


def test_files_stay_for_running_readers_until_the_delay_is_over(live: LiveCluster) -> None:
    """file.delete.delay.ms: a read is pinned to the state at its planning."""
    live.tiered(file_delete_delay_ms="60000")
    live.fill("abc")
    plan = live.cluster.plan_read("t")
    live.cluster.tier().raise_for_failures()
    for _ in range(3):
        live.cluster.retain().raise_for_failures()
        live.clock.advance_ms(15_000)
    assert live.log(1).local_start == 2
    assert [value for part in plan for _, value in live.records(part)] == list("abc")
    live.clock.advance_ms(60_000)
    live.cluster.retain().raise_for_failures()
    assert len(live.log(1).listing.data) == 1
    assert live.read() == {0: list("abc")}


@pytest.mark.slow
def test_local_starts_that_move_on_all_the_time_do_not_keep_files_forever(live: LiveCluster) -> None:
    """A retain every half minute, and a delay of a minute: files are deleted a minute after they left the log."""
    live.tiered(file_delete_delay_ms="60000")
    most = 0
    for _ in range(12):
        live.fill("a")
        live.cluster.tier().raise_for_failures()
        live.cluster.retain().raise_for_failures()
        most = max(most, len(live.log(1).listing.data))
        live.clock.advance_ms(30_000)
    assert most <= 5


@pytest.mark.slow
def test_if_a_remote_object_is_missing_retain_keeps_the_local_copy_and_verify_names_it(live: LiveCluster) -> None:
    """Bad input: "a remote table that lacks an object it lists"."""
    live.tiered()
    live.fill("abcdef")
    live.cluster.tier().raise_for_failures()
    lost = remote_files(live)[2]
    lost.unlink()
    for _ in range(2):
        report = live.cluster.retain(check=False)
        assert codes(report) == {"REMOTE_OBJECT_MISSING": 1}
        assert lost.name in the_failure(report)
    assert live.log(1).local_start == 2
    assert live.read() == {0: list("abcdef")}
    report = live.cluster.verify()
    assert codes(report) == {"REMOTE_OBJECT_MISSING": 1}
    assert lost.name in the_failure(report)


def test_a_remote_object_that_was_cut_off_counts_as_missing(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    first = remote_files(live)[0]
    first.write_bytes(first.read_bytes()[:-1])
    for _ in range(2):
        assert first.name in the_failure(live.cluster.retain(check=False))
    assert live.log(1).local_start == 0
    assert first.name in the_failure(live.cluster.verify())


# ------------------------------------------------------------------------------ total retention


@pytest.mark.slow
def test_a_remote_that_is_not_the_one_that_it_was_is_named_and_nothing_is_dropped(live: LiveCluster) -> None:
    """The folder is missing, or another volume is mounted there: a new table would hide the tiered records."""
    live.tiered()
    live.fill("abcde")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.log(live.leader()).local_start > 0
    live.remote.rename(live.folder / "away")
    live.remote.mkdir()
    live.append(["f"]).raise_for_failures()
    assert "check that the right remote tier is mounted" in the_failure(live.cluster.tier(check=False))
    live.cluster.retain(check=False)
    assert live.log(live.leader()).log_end == 6
    assert "check that the right remote tier is mounted" in str(live.cluster.verify().failures)
    shutil.rmtree(live.remote)
    (live.folder / "away").rename(live.remote)
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcdef")}


@pytest.mark.slow
@pytest.mark.parametrize("tiered", [False, True])
def test_total_retention_by_size_moves_the_log_start(live: LiveCluster, tiered: bool) -> None:
    """retention.bytes counts both tiers; the log start offset is committed, and no record below it is read.
    KIP-405, RLM task, step 3: the "earliest remote offset" is "the base offset of the earliest remote segment,
    when old remote segments are removed"."""
    (live.tiered if tiered else live.topic)(segment_bytes="1", file_delete_delay_ms="0")
    live.fill("abcdefgh")
    if tiered:
        live.cluster.tier().raise_for_failures()
        live.cluster.retain().raise_for_failures()
    assert live.read() == {0: list("abcdefgh")}
    sizes = list(live.data(1).values()) if not tiered else [p.read_bytes() for p in remote_files(live)]
    live.cluster.topics.alter_configs(
        "t", {"retention.bytes": str(sum(map(len, sizes[-3:]))), "local.retention.bytes": "0"}
    )
    assert rows_of(live.cluster.retain(), "log_start") == [(5,)]
    assert live.replicas().view.log_start_offset == 5
    assert live.read() == {0: list("fgh")}
    assert live.read(start=6) == {0: list("gh")}
    with pytest.raises(OffsetOutOfRangeError, match="t-0: start 4 is below the log start: readers see \\[5, 8\\)"):
        live.cluster.plan_read("t", start=4)
    live.cluster.retain().raise_for_failures()
    live.cluster.verify().raise_for_failures()
    for broker in (1, 2, 3):
        assert min(file.name.base_offset for file in live.log(broker).listing.data) >= 5
    if tiered:
        assert offsets_in(live) == [5, 6, 7]
        assert len(remote_files(live)) == 3


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.slow
def test_total_retention_by_time_uses_the_records_own_timestamps(live: LiveCluster, tiered: bool) -> None:
    (live.tiered if tiered else live.topic)(segment_bytes="1", retention_ms=str(HOUR_MS))
    now = live.clock.now_ms()
    live.fill("ab", at_ms=now - 3 * HOUR_MS)
    live.fill("cd", at_ms=now)
    if tiered:
        live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: list("cd")}
    live.clock.advance_ms(2 * HOUR_MS)
    live.cluster.retain().raise_for_failures()
    assert live.read() == {}, "the last file, too"


def test_a_log_start_inside_a_file_hides_its_first_records(live: LiveCluster) -> None:
    """Files are never cut for retention; readers skip the records below the log start."""
    live.tiered(segment_bytes="1000000", segment_ms="60000", segment_merge_min_files="2")
    live.fill("abcd")
    live.append(["e"])
    live.cluster.topics.alter_configs("t", {"retention.bytes": str(3 * 2400)})
    live.cluster.retain().raise_for_failures()
    start = live.replicas().view.log_start_offset
    assert 0 < start < 5
    live.clock.advance_ms(120_000)
    live.cluster.tier().raise_for_failures()
    assert offsets_in(live) == list(range(start, 5))
    assert live.read() == {0: list("abcde")[start:]}


@pytest.mark.slow
def test_after_retention_has_passed_the_remote_log_tiering_starts_over(live: LiveCluster) -> None:
    """KIP-1023: "the leader's Log-Start-Offset is much ahead of the highest offset on the remote storage"."""
    live.tiered(local_retention_bytes="-2")
    live.fill("ab", at_ms=1)
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.alter_configs("t", {**OFF, "retention.ms": str(HOUR_MS)})
    live.fill("cd", at_ms=1)
    live.fill("ef", at_ms=live.clock.now_ms())
    live.cluster.retain().raise_for_failures()
    assert live.replicas().view.log_start_offset == 4
    live.cluster.topics.alter_configs("t", {"remote.storage.enable": "true"})
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert offsets_in(live) == [4, 5]
    live.cluster.verify().raise_for_failures()
    assert live.read() == {0: ["e", "f"]}


# ------------------------------------------------------------------------------------ deletion


def test_a_deleted_topic_is_gone_from_the_metadata_the_disks_and_the_remote(live: LiveCluster) -> None:
    """Contract: "deleting a topic removes it from the image first and from disks and remote afterwards"."""
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.delete("t").raise_for_failures()
    assert topic_folders(live) == []
    assert not [name for name in live.on_brokers() if "/t-" in name]
    live.tiered()
    live.fill("x")
    assert live.read() == {0: ["x"]}, "another topic, whatever its name"


def test_the_remote_may_be_kept(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    before = live.in_remote()
    live.cluster.topics.delete("t", keep_remote=True).raise_for_failures()
    assert live.in_remote() == before


def test_a_topic_that_is_not_tiered_any_more_leaves_nothing_in_the_remote(live: LiveCluster) -> None:
    live.tiered(local_retention_bytes="-2")
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.alter_configs("t", OFF)
    live.cluster.topics.delete("t").raise_for_failures()
    assert topic_folders(live) == []


def test_a_vacuum_finds_what_deleted_topics_and_former_disks_left(tmp_path: Path) -> None:
    """The remains of an interrupted ``delete_topic`` are removed, or those on a broker that was away at
    that time.
    """
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic("kept")
    live.topic("gone")
    live.fill("abc", "kept")
    live.fill("xyz", "gone")
    with live.unreachable(3):
        live.cluster.topics.delete("gone")
    left = [name for name in live.on_brokers() if "/gone-" in name]
    assert left
    assert all("/b3/" in name for name in left)
    for dry_run in (True, False):
        report = live.cluster.vacuum(dry_run=dry_run)
        assert rows_of(report, "why", "files") == [("folders without an owner", len(left))]
    assert not [name for name in live.on_brokers() if "/gone-" in name]
    assert live.read("kept") == {0: list("abc")}
    live.cluster.verify().raise_for_failures()
