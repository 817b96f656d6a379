"""Verify: each fault is found once, and reported with the replica, the file and the exact offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.upkeep.verification import content
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import join
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.check import check_segment
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store import StoredObject
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.harness import batch
from tests.unit.tampering import Spot, register, remote_spot, spot


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Three brokers; ``t`` holds a to e, one file each, on all of them."""
    made = LiveCluster(tmp_path)
    made.topic()
    made.fill("abcde")
    return made


def rewritten(
    spot: Spot, values: list[bytes], *, base: int, topic_id: str, row_group_bytes: int = 1 << 20
) -> None:
    """Replace a segment by one that is intact, and has other content."""
    staged_path = join("scratch", spot.name)
    staged = spot.store.stage_writer(staged_path)
    writer = SegmentWriter(
        staged.file,
        physical_schema(),
        topic_id=topic_id,
        partition=0,
        base_offset=base,
        row_group_bytes=row_group_bytes,
    )
    for value in values:
        writer.write(batch([value]))
    writer.close(lineage=Lineage([(1, 0)]), producers=lambda _: {}, created_ms=0)
    staged.commit()
    spot.replace(spot.store.read(staged_path))
    spot.store.delete([staged_path])


# ----------------------------------------------------------------------------------- structure


def test_a_cluster_without_damage_has_no_findings(live: LiveCluster) -> None:
    with live.unchanged():
        assert rows_of(live.cluster.verify("t"), "replicas", "files", "findings") == [(3, 15, 0)]
        assert rows_of(live.cluster.verify("t", deep=True), "replicas", "files", "findings") == [(3, 15, 0)]


def test_without_deep_no_records_are_read(live: LiveCluster) -> None:
    """Structure and footers: only ``deep`` finds a flipped bit of a record."""
    file = spot(live, 2, 1)
    file.flip(30)
    live.cluster.verify().raise_for_failures()
    assert file.name in the_failure(live.cluster.verify(deep=True))


@pytest.mark.parametrize("deep", [False, True])
def test_a_file_that_is_missing_in_the_middle_is_reported_with_its_offsets(live: LiveCluster, deep: bool) -> None:
    spot(live, 2, 2).remove()
    with live.unchanged():
        failure = the_failure(live.cluster.verify(deep=deep))
    assert "t-0 on broker 2: LOG_GAP" in failure
    assert "offsets [2, 3) are missing" in failure


def test_files_that_are_missing_at_the_end_are_reported_with_their_offsets(live: LiveCluster) -> None:
    for broker in (2, 3):
        for index in (4, 3):
            spot(live, broker, index).remove()
    messages = [failure.message for failure in live.cluster.verify().failures]
    assert len(messages) == 2
    assert all("offsets [3, 5) are missing: the high watermark reached 5" in message for message in messages)


def test_every_gap_is_reported_not_only_the_first(live: LiveCluster) -> None:
    for index in (3, 1):
        spot(live, 3, index).remove()
    text = " ".join(failure.message for failure in live.cluster.verify().failures)
    assert "offsets [1, 2) are missing" in text
    assert "offsets [3, 4) are missing" in text


def test_a_leader_that_is_shorter_than_its_follower_has_lost_records(live: LiveCluster) -> None:
    """The follower has copied the leader's log, so its copies have the same damage."""
    live.append(["f"], acks="leader").raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    leader = live.leader()
    spot(live, leader, 5).remove()
    register(live, leader, "6.0000000001.hw").remove()
    assert "offsets [5, 6) are missing: broker" in the_failure(live.cluster.verify())


def test_a_last_file_without_a_footer_ends_where_the_high_watermark_says(live: LiveCluster) -> None:
    spot(live, 2, 4).cut()
    for deep in (False, True):
        failure = the_failure(live.cluster.verify(deep=deep))
        assert "CORRUPT_SEGMENT: offsets [4, 5): " in failure


# ------------------------------------------------------------------------------------ all bytes


def test_damage_inside_a_file_is_reported_with_the_offsets_of_its_row_group(live: LiveCluster) -> None:
    """The offsets are as exact as a file allows."""
    topic_id = live.cluster.image.topic("t").topic_id
    for broker in (1, 2, 3):
        last = spot(live, broker, 4)
        rewritten(last, [b"x" * 400, b"y" * 400, b"z" * 400], base=4, topic_id=topic_id, row_group_bytes=450)
    parquet = read_segment(live.store(2), live.log(2).chain[4].file).parquet
    assert parquet.num_row_groups == 3
    partitions = parquet.row_group(1).column(0)
    last = spot(live, 2, 4)
    last.flip(partitions.data_page_offset + partitions.total_compressed_size - 3)
    (bad,) = check_segment(live.store(2), live.log(2).chain[4].file).bad
    assert (bad.start, bad.end) == (5, 6)
    failure = the_failure(live.cluster.verify(deep=True))
    assert failure.startswith("t-0 on broker 2: CORRUPT_SEGMENT: offsets [5, 6): ")
    assert last.name in failure


def test_a_whole_file_that_differs_from_the_two_others_is_the_odd_one(live: LiveCluster) -> None:
    """Every checksum holds; replicas whose listings agree must be equal in bytes."""
    other = spot(live, 3, 1)
    rewritten(other, [b"B"], base=1, topic_id=live.cluster.image.topic("t").topic_id)
    failure = the_failure(live.cluster.verify(deep=True))
    assert failure.startswith("t-0 on broker 3: CORRUPT_SEGMENT")
    assert "offsets [1, 2): " in failure
    assert "differs from that of its copies (broker 1, broker 2, broker 3)" in failure


def test_one_name_with_two_sizes_is_found_without_reading_the_records(live: LiveCluster) -> None:
    """Protocol, section 1: "a name with two sizes is corruption and is reported"."""
    other = spot(live, 3, 1)
    rewritten(other, [b"B" * 50], base=1, topic_id=live.cluster.image.topic("t").topic_id)
    assert other.name in the_failure(live.cluster.verify())


def test_if_only_two_copies_differ_it_is_unknown_which_is_right(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2)
    live.fill("abc")
    rewritten(spot(live, 2, 1), [b"B"], base=1, topic_id=live.cluster.image.topic("t").topic_id)
    assert "no majority of the copies agrees" in the_failure(live.cluster.verify(deep=True))


def test_a_replica_is_read_in_groups_of_bounded_size(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups let all cores read one large replica."""
    monkeypatch.setattr(content, "GROUP_BYTES", 1)
    log = live.log(1)
    held = [content.HeldFile(link.file, link.start, link.end) for link in log.chain]
    works = list(content.groups_of(live.replicas(), 1, live.store(1), held))
    assert [len(work.files) for work in works] == [1] * 5
    monkeypatch.undo()
    (work,) = content.groups_of(live.replicas(), 1, live.store(1), held)
    assert work.size_bytes == sum(link.file.object.size_bytes for link in log.chain)


def test_a_file_that_a_merge_took_away_while_it_was_to_be_read_is_not_missed(live: LiveCluster) -> None:
    """The log still holds the file's records; a file that is missing together with its records is a finding."""
    live.cluster.topics.alter_configs("t", {"segment.merge.min.files": "2", "file.delete.delay.ms": "0"})
    held = [content.HeldFile(link.file, link.start, link.end) for link in live.log(1).chain]
    (work,) = content.groups_of(live.replicas(), 1, live.store(1), held)
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert len(live.log(1).listing.data) < 5
    assert content.read_files(work).findings == ()
    spot(live, 1, 0).remove()
    assert {type(f.error).__name__ for f in content.read_files(work).findings} == {"LogGapError"}


# ------------------------------------------------------------------- registers, foreign files, remote


def test_registers_are_read_and_named(live: LiveCluster) -> None:
    register(live, 2, ".hw").replace(b"x")
    failure = the_failure(live.cluster.verify(deep=True))
    assert ".hw has 1 bytes, but must be empty" in failure
    assert "from a backup" in failure


@pytest.mark.parametrize("content", [None, b"", b"[[1,0],[1,3]]", b"not json"])
def test_a_missing_or_damaged_epoch_register_is_named(live: LiveCluster, content: bytes | None) -> None:
    epoch = register(live, 3, ".epoch")
    if content is None:
        epoch.remove()
    else:
        epoch.replace(content)
    with live.unchanged():
        failure = the_failure(live.driver().verify())
    assert epoch.name in failure
    assert "t-0 on broker 3" in failure


def test_a_damaged_local_start_is_named(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(copies=2)
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    follower = live.followers()[0]
    register(live, follower, ".local").replace(b"no state")
    assert ".local is damaged: it lacks the state of producers" in the_failure(live.cluster.verify(deep=True))


def test_a_foreign_file_is_named_and_no_damage_of_the_log(live: LiveCluster) -> None:
    Spot(live.store(1), join(live.replica(1).folder, "notes.txt")).replace(b"hello")
    with live.unchanged():
        assert "notes.txt is a foreign file" in the_failure(live.cluster.verify(deep=True))


def test_a_copy_inside_a_replicas_folder_is_foreign_and_hides_and_deletes_nothing(live: LiveCluster) -> None:
    folder = live.replica(1).folder
    for name in ("00000000000000000004.local", "00000000000000000009.0000000001.hw", "0000000009.epoch"):
        Spot(live.store(1), join(folder, "saved", name)).replace(b"x")
    assert live.read() == {0: list("abcde")}
    messages = [failure.message for failure in live.cluster.verify(deep=True).failures]
    assert ["/saved/" in each and "is a foreign file" in each for each in messages] == [True] * 3

    def kept() -> list[StoredObject]:
        return [o for o in live.store(1).list(folder) if "/saved/" in o.name or o.name.endswith(".parquet")]

    before = kept()
    for _ in range(2):
        live.clock.advance_ms(7 * 24 * 3_600_000)
        live.cluster.retain().raise_for_failures()
        live.cluster.vacuum().raise_for_failures()
    assert kept() == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_damage_of_the_remote_is_named(tmp_path: Path, damage: str) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(local_retention_bytes="-2")
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    file = remote_spot(live, 1)
    file.flip(30) if damage == "flip" else file.remove()
    report = live.cluster.verify(deep=True)
    assert codes(report) == {"CORRUPT_SEGMENT" if damage == "flip" else "REMOTE_OBJECT_MISSING": 1}
    assert the_failure(report).startswith("t-0 in the remote tier: ")


# -------------------------------------------------------------------------------- byte identity


def assert_identical(live: LiveCluster) -> None:
    """Check that replicas with the same names and sizes have the same bytes, and that their logs are the same."""
    by_name: dict[tuple[str, int], set[bytes]] = {}
    for broker in live.replicas().view.replicas:
        for link in live.log(broker).chain:
            data = live.store(broker).read(link.file.object.name)
            by_name.setdefault((str(link.name), len(data)), set()).add(data)
    assert all(len(contents) == 1 for contents in by_name.values())
    assert len({name for name, _ in by_name}) == len(by_name), "a name with two sizes"


@pytest.mark.slow
def test_replicas_whose_listings_agree_are_equal_in_bytes(tmp_path: Path) -> None:
    """Appends, merges, elections, a bootstrap and retention come first: bytes are copied and never re-encoded."""
    live = LiveCluster(tmp_path)
    live.tiered(copies=3, segment_bytes="6000", segment_merge_min_files="3", local_retention_bytes="9000")
    for round_ in range(4):
        for value in "abc":
            live.append([f"{value}{round_}"], acks="all" if value != "b" else "leader")
        live.cluster.replicate().raise_for_failures()
        assert_identical(live)
        live.cluster.merge().raise_for_failures()
        live.cluster.replicate().raise_for_failures()
        assert_identical(live)
        live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
        live.cluster.tier().raise_for_failures()
        live.cluster.retain().raise_for_failures()
        assert_identical(live)
        lost = max(live.followers())  # broker 1 votes
        live.wipe(lost)
        live.cluster.bootstrap(lost).raise_for_failures()
        live.append([f"d{round_}"]).raise_for_failures()
        live.cluster.replicate().raise_for_failures()
        assert_identical(live)
        live.cluster.verify(deep=True).raise_for_failures()
    assert live.isr() == {1, 2, 3}
