"""Records that replicas have discarded: shown by history, kept for their delay, exported by recover.

The divergence of most tests: ``ab`` is on both brokers; the follower is away while ``c`` and ``d`` are appended.
Then the leader is away, the other one is elected uncleanly and appends ``X``. The old leader returns and follows:
c and d are below a high watermark that readers have seen, but in no log any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stratalog.engine.upkeep.healing.recover import described
from stratalog.partitions.errors import (
    InvalidCallError,
    LogDirError,
    SourceChangedError,
    StorageError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing
from stratalog.partitions.replica import Replica
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from tests.unit import hostile_parquet as hostile
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure, unfence
from tests.unit.tampering import Spot

DELAY_MS = 60_000


def diverge(live: LiveCluster, then: str = "X", before: Callable[[], object] = lambda: None) -> int:
    """The divergence above, with ``before`` called before the leader leaves; returns the old leader."""
    old, other = live.leader(), live.followers()[0]
    live.fill("ab")
    live.cluster.brokers.fence(other).raise_for_failures()
    live.fill("cd", at_ms=5)
    before()
    live.cluster.brokers.fence(old, force=True).raise_for_failures()
    live.cluster.brokers.unfence(other).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.fill(then)
    live.cluster.brokers.unfence(old).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: [*"ab", *then]}
    assert live.isr() == {1, 2}
    return old


def diverged(folder: Path) -> LiveCluster:
    """A cluster in which ``t`` has diverged; the old leader is the follower."""
    live = LiveCluster(folder, brokers=2)
    live.topic(copies=2, file_delete_delay_ms=str(DELAY_MS))
    diverge(live)
    return live


def exported(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """Offsets and values of each exported file, by its path."""
    found = {}
    for path in sorted(folder.rglob("*.parquet")):
        table = pq.ParquetFile(path).read()
        values = [value.decode() for value in table["value"].to_pylist()]
        found[str(path.relative_to(folder))] = list(zip(table["offset"].to_pylist(), values, strict=True))
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder for exports."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


# -------------------------------------------------------------------------------------- history


def test_a_log_that_never_lost_anything_has_no_history(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("abc")
    with live.unchanged():
        assert live.cluster.discarded().rows == []


def test_records_that_an_unclean_election_truncated_are_shown_with_the_reason(tmp_path: Path) -> None:
    live = diverged(tmp_path)
    (old,), lost = live.followers(), live.replicas().epoch
    with live.unchanged():
        found = live.cluster.discarded()
    why = f"truncated by epoch {lost} at offset 2"
    assert rows_of(found, "broker", "start", "end", "records", "why") == [
        (old, 2, 3, 1, why),
        (old, 3, 4, 1, why),
    ]
    assert found.totals["files"] == 2


def test_a_truncated_file_above_the_high_watermark_may_come_back_and_has_no_date(tmp_path: Path) -> None:
    """V6 of the attack on the protocol. X reaches to offset 3: c is below it, and d is not."""
    live = diverged(tmp_path)
    c, d = (str(row["deletable"]) for row in live.cluster.discarded().rows)
    assert c.startswith("20")
    assert d == "not yet: the file is above the high watermark"
    live.append(["Y"]).raise_for_failures()
    assert all(str(row["deletable"]).startswith("20") for row in live.cluster.discarded().rows)


def test_nothing_truncated_is_deleted_before_its_delay_counted_from_the_truncation(tmp_path: Path) -> None:
    """The files are old, but have only now become unused."""
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2, file_delete_delay_ms=str(DELAY_MS))
    diverge(live, "XYZ", before=lambda: live.clock.advance_ms(100 * DELAY_MS))
    live.clock.advance_ms(DELAY_MS - 1)
    live.cluster.retain().raise_for_failures()
    assert len(live.cluster.discarded().rows) == 2
    live.clock.advance_ms(1)
    live.cluster.retain().raise_for_failures()
    assert live.cluster.discarded().rows == []
    assert live.read() == {0: list("abXYZ")}


def passed_by(live: LiveCluster) -> int:
    """The old leader of a diverged tiered topic. It returns when the new leader's local start has passed ``c`` and
    ``d``, which were acknowledged at offsets 2 and 3, and of which it has the only copies.
    """
    live.tiered(copies=2, file_delete_delay_ms=str(DELAY_MS))
    old, other = live.leader(), live.followers()[0]
    live.fill("ab")
    fence(live, other)
    live.fill("cd", at_ms=5)
    live.clock.advance_ms(100 * DELAY_MS)
    live.cluster.brokers.fence(old, force=True).raise_for_failures()
    unfence(live, other)
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.fill("VWXYZ")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.log(other).local_start > 4
    unfence(live, old)
    live.cluster.replicate().raise_for_failures()
    assert live.log(old).local_start > 4
    return old


@pytest.mark.slow
def test_truncated_records_are_shown_and_exported_even_below_the_local_start(tmp_path: Path, out: Path) -> None:
    """If a file's epoch is not the lineage's at its offsets, the file is of another history, whatever the log
    start is.
    """
    live = LiveCluster(tmp_path, brokers=2)
    old = passed_by(live)
    lost = [row for row in live.cluster.discarded().rows if str(row["why"]).startswith("truncated")]
    assert [(row["broker"], row["start"]) for row in lost] == [(old, 2), (old, 3)]
    live.cluster.recover("t", str(out)).raise_for_failures()
    assert list(exported(out).values()) == [[(2, "c")], [(3, "d")]]


@pytest.mark.slow
def test_truncated_records_below_the_local_start_stay_for_their_delay_too(tmp_path: Path, out: Path) -> None:
    """Only the old files that retention released are deleted immediately."""
    live = LiveCluster(tmp_path, brokers=2)
    passed_by(live)
    live.clock.advance_ms(DELAY_MS - 1)
    live.cluster.retain().raise_for_failures()
    live.cluster.recover("t", str(out)).raise_for_failures()
    assert list(exported(out).values()) == [[(2, "c")], [(3, "d")]]
    live.clock.advance_ms(1)
    live.cluster.retain().raise_for_failures()
    assert [row for row in live.cluster.discarded().rows if str(row["why"]).startswith("truncated")] == []


def orphaned(live: LiveCluster) -> int:
    """The old leader of a diverged topic, whose replica was reassigned while its root was away: ``c`` and ``d``,
    at offsets 2 and 3, are on no replica."""
    live.topic(copies=2, file_delete_delay_ms=str(DELAY_MS))
    old, other = live.leader(), live.followers()[0]
    (third,) = {1, 2, 3} - {old, other}
    live.fill("ab")
    fence(live, other)
    live.fill("cd", at_ms=5)
    live.cluster.brokers.fence(old, force=True).raise_for_failures()
    unfence(live, other)
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.fill("XYZ")
    live.cluster.reassign({("t", 0): (other, third)}).raise_for_failures()
    unfence(live, old)
    assert old not in live.replicas().view.replicas
    return old


def test_records_that_only_a_reassigned_replica_has_are_shown_and_exported(tmp_path: Path, out: Path) -> None:
    live = LiveCluster(tmp_path)
    old = orphaned(live)
    why = f"truncated by epoch {live.replicas().epoch} at offset 2"
    with live.unchanged():
        report = live.cluster.discarded()
        assert rows_of(report, "broker", "start", "end", "why") == [(old, 2, 3, why), (old, 3, 4, why)]
    assert {row["deletable"] for row in report.rows} == {"not yet: vacuum has not closed the folder"}
    live.cluster.recover("t", str(out)).raise_for_failures()
    assert list(exported(out).values()) == [[(2, "c")], [(3, "d")]]
    (live.folder / "again").mkdir()
    assert len(live.cluster.recover("t", str(live.folder / "again"), broker=old).rows) == 2


def test_a_vacuum_keeps_what_a_reassigned_replica_has_alone_for_its_delay(tmp_path: Path, out: Path) -> None:
    """The delay counts from the first vacuum that finds the file; files that are also in the log are deleted
    immediately.
    """
    live = LiveCluster(tmp_path)
    old = orphaned(live)
    live.clock.advance_ms(100 * DELAY_MS)

    def held() -> set[int]:
        """The base offsets of the data files of ``t`` on the old leader."""
        files = (name for name in live.on_brokers() if f"://b{old}/" in name and "/t-" in name)
        return {int(name.rpartition("/")[2][:20]) for name in files if name.endswith(".parquet")}

    assert held() == {0, 1, 2, 3}
    live.cluster.vacuum().raise_for_failures()
    assert held() == {2, 3}
    live.clock.advance_ms(DELAY_MS - 1)
    live.cluster.vacuum().raise_for_failures()
    assert held() == {2, 3}
    assert all(str(row["deletable"]).startswith("20") for row in live.cluster.discarded().rows)
    live.cluster.recover("t", str(out)).raise_for_failures()
    assert list(exported(out).values()) == [[(2, "c")], [(3, "d")]]
    live.clock.advance_ms(1)
    live.cluster.vacuum().raise_for_failures()
    assert held() == set()
    assert live.cluster.discarded().rows == []


@pytest.mark.slow
def test_a_vacuum_keeps_what_a_former_replica_has_while_nobody_leads(tmp_path: Path) -> None:
    """The content of the log is unknown."""
    live = LiveCluster(tmp_path)
    old = orphaned(live)
    fence(live, *live.replicas().view.replicas)
    assert live.replicas().view.leader is None
    before = {name for name in live.on_brokers() if f"://b{old}/" in name and name.endswith(".parquet")}
    live.cluster.vacuum()
    assert before <= live.on_brokers().keys()


@pytest.mark.slow
def test_files_below_the_local_start_and_hidden_ones_are_shown_with_theirs(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=1)
    live.tiered(
        copies=1,
        segment_bytes="12000",
        segment_merge_min_files="3",
        local_retention_bytes="1",
        file_delete_delay_ms=str(DELAY_MS),
    )
    live.fill("abcdefgh")
    live.cluster.merge().raise_for_failures()
    why = {str(row["why"]) for row in live.cluster.discarded().rows}
    assert any(text.startswith("hidden by 00000000000000000000-") for text in why)
    live.cluster.topics.alter_configs("t", {"segment.bytes": "4500"})  # they are now separate segments
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    start = live.log(1).local_start
    assert start > 0
    assert f"below the local log start {start}" in {str(row["why"]) for row in live.cluster.discarded().rows}
    live.clock.advance_ms(DELAY_MS)
    live.cluster.retain().raise_for_failures()
    assert live.cluster.discarded().rows == []


# -------------------------------------------------------------------------------------- recover


def test_truncated_records_are_exported_with_all_columns(tmp_path: Path, out: Path) -> None:
    """Topic, partition, epoch and base offset are in the path, and again in the manifest."""
    live = diverged(tmp_path)
    with live.unchanged():
        report = live.cluster.recover("t", str(out))
    epoch = int(str(report.rows[0]["epoch"]))
    assert rows_of(report, "start", "end", "outcome") == [(2, 3, "exported"), (3, 4, "exported")]
    folder = f"t/0/epoch-{epoch:010d}"
    assert exported(out) == {
        f"{folder}/{2:020d}.parquet": [(2, "c")],
        f"{folder}/{3:020d}.parquet": [(3, "d")],
    }
    table = pq.ParquetFile(out / f"{folder}/{2:020d}.parquet").read()
    assert set(table.column_names) >= {"partition", "offset", "timestamp", "key", "value", "headers"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert [
        (f["topic"], f["partition"], f["epoch"], f["base_offset"], f["next_offset"]) for f in manifest["files"]
    ] == [
        ("t", 0, epoch, 2, 3),
        ("t", 0, epoch, 3, 4),
    ]
    assert 'cluster.append("t", spark.read.parquet(' in manifest["how"][0]
    assert any("append the records again" in note for note in report.notes)


def test_exporting_twice_is_harmless_and_a_lost_manifest_is_recreated(tmp_path: Path, out: Path) -> None:
    live = diverged(tmp_path)
    live.cluster.recover("t", str(out)).raise_for_failures()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / "manifest.json").unlink()
    again = live.cluster.recover("t", str(out), partitions=[0], broker=live.followers()[0])
    assert rows_of(again, "outcome") == [("was there",), ("was there",)]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_dry_run_exports_nothing(tmp_path: Path, out: Path) -> None:
    live = diverged(tmp_path)
    assert rows_of(live.cluster.recover("t", str(out), dry_run=True), "outcome") == [("planned",), ("planned",)]
    assert list(out.iterdir()) == []


def test_a_damaged_file_is_not_exported_and_named(tmp_path: Path, out: Path) -> None:
    """The damaged file is verified before the export; the other one is exported."""
    live = diverged(tmp_path)
    (old,) = live.followers()
    dead = live.log(old).dead[0]
    Spot(live.store(old), dead.object.name).flip(30)
    report = live.driver().recover("t", str(out), check=False)
    assert codes(report) == {"CORRUPT_SEGMENT": 1}
    assert str(dead.name) in the_failure(report)
    assert [[value for _, value in rows] for rows in exported(out).values()] == [["d"]]


@pytest.mark.slow
def test_files_that_others_put_into_the_folder_are_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow would use a hundred bytes for each byte of such a footer, so Arrow never gets one."""
    store = MemoryStore()
    assert described(store, "a.parquet") is None
    store.create("a.parquet", b"whatever")
    store.create("b.parquet", hostile.many_columns(hostile.honest()))
    monkeypatch.setattr(pq, "read_metadata", lambda *_, **__: pytest.fail("Arrow would read it"))
    assert described(store, "a.parquet") is None
    assert described(store, "b.parquet") is None


def test_a_footer_without_end_in_the_folder_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.parquet").open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, 2)
        file.write((3 << 30).to_bytes(4, "little") + b"PAR1")
    store = LocalStore(str(tmp_path))
    assert described(store, "a.parquet") is None
    assert store.counts.read_bytes < 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"), [("partition", 2**70), ("epoch", -1), ("path", 7), ("why", "[" * 9999)]
)
def test_a_description_that_stratalog_has_not_written_is_none(
    tmp_path: Path, out: Path, field: str, value: object
) -> None:
    live = diverged(tmp_path)
    live.cluster.recover("t", str(out)).raise_for_failures()
    first = sorted(out.rglob("*.parquet"))[0]
    table = pq.read_table(first)
    answer = json.loads(pq.read_metadata(first).metadata[b"stratalog.recovered"]) | {field: value}
    text = json.dumps(answer).replace('"' + "[" * 9999 + '"', "[" * 9999)
    pq.write_table(table.replace_schema_metadata({b"stratalog.recovered": text.encode()}), first)
    report = live.cluster.recover("t", str(out), check=False)
    assert "already exists with other content" in the_failure(report)
    assert len(json.loads((out / "manifest.json").read_text())["files"]) == 1


def test_an_export_overwrites_no_file_of_others(tmp_path: Path, out: Path) -> None:
    live = diverged(tmp_path)
    path = Path(str(live.cluster.recover("t", str(out), dry_run=True).rows[0]["path"]).removeprefix("file://"))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    assert "already exists with other content" in the_failure(live.cluster.recover("t", str(out), check=False))
    assert path.read_bytes() == b"mine"


def test_records_that_only_retention_discards_are_not_exported(tmp_path: Path, out: Path) -> None:
    """Expired and hidden records are not lost: retention released them, or they are in the log."""
    live = LiveCluster(tmp_path, brokers=1)
    live.topic(copies=1, segment_merge_min_files="2", retention_bytes="1", segment_bytes="9000")
    live.fill("abcdefgh")
    live.cluster.merge().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.cluster.discarded().rows
    assert live.cluster.recover(None, str(out)).rows == []


def test_only_the_records_of_a_merged_segment_that_the_log_lacks_are_exported(tmp_path: Path, out: Path) -> None:
    """The old leader merges a to d before it leaves; a and b are in the log nevertheless."""
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2, segment_merge_min_files="2")
    diverge(live, before=lambda: live.cluster.merge().raise_for_failures())
    live.cluster.recover("t", str(out)).raise_for_failures()
    assert list(exported(out).values()) == [[(2, "c"), (3, "d")]]


def test_calls_that_cannot_succeed_say_why(tmp_path: Path, out: Path) -> None:
    live = diverged(tmp_path)
    with live.unchanged():
        with pytest.raises(InvalidCallError, match="share storage: export to a folder or bucket outside"):
            live.cluster.recover("t", str(live.remote / "inside"))
        with pytest.raises(LogDirError, match="nowhere"):
            live.cluster.recover("t", str(tmp_path / "nowhere"))
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 3"):
            live.cluster.recover("t", str(out), partitions=[3])
        with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
            live.cluster.recover("u", str(out))
        with pytest.raises(UnknownBrokerError, match="9"):
            live.cluster.recover("t", str(out), broker=9)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "log", "parts"),
    [
        ([(1, 0)], [(1, 0)], None),
        ([(1, 0)], [(1, 0), (2, 3)], 3),
        ([(1, 0)], [(1, 0), (2, 0)], 0),
        ([(1, 0), (2, 3)], [(1, 0), (3, 3)], 3),
        ([(1, 0), (2, 3)], [(1, 0), (3, 5)], 3),
        ([(1, 0), (2, 3), (4, 6)], [(1, 0), (2, 3), (5, 8)], 6),
        ([(1, 0)], [(1, 0), (2, 10)], None),
    ],
)
def test_a_file_parts_from_the_log_where_their_lineages_differ(
    file: list[tuple[int, int]], log: list[tuple[int, int]], parts: int | None
) -> None:
    """A file has offsets 0 to 9; its lineage is compared with the log's."""
    assert Lineage(file).parts_from(Lineage(log), 0, 10) == parts


def test_files_are_unknown_if_the_leaders_history_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = diverged(tmp_path)
    leader, (follower,) = live.leader(), live.followers()
    lineage = Replica.lineage

    def no_answer(replica: Replica, listing: Listing) -> Lineage:
        if replica.broker_id == leader:
            raise StorageError("no answer")
        return lineage(replica, listing)

    monkeypatch.setattr(Replica, "lineage", no_answer)
    report = live.cluster.recover("t", to=str(tmp_path / "out"), broker=follower, dry_run=True, check=False)
    assert the_failure(report) == f"t-0 on broker {leader}: KAFKA_STORAGE_ERROR: no answer"
    report = live.cluster.discarded()
    assert the_failure(report) == f"t-0 on broker {leader}: KAFKA_STORAGE_ERROR: no answer"


def test_a_file_that_is_deleted_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = diverged(tmp_path)
    (follower,) = live.followers()
    footer, gone = Replica.footer, list[str]()

    def deleted(replica: Replica, file: DataFile) -> SegmentFooter:
        if replica.broker_id == follower and str(file.name).startswith(f"{2:020d}.{1:010d}"):
            gone.append(str(file.name))
            raise SourceChangedError("the file was deleted")
        return footer(replica, file)

    monkeypatch.setattr(Replica, "footer", deleted)
    assert rows_of(live.cluster.discarded(), "start") == [(3,)]
    assert gone
