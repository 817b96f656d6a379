"""Records exported to a Kafka cluster arrive once each, whatever is killed, at the same offsets or with a map."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from stratalog.bridges.export import kept
from stratalog.bridges.export.export import export
from stratalog.bridges.export.journal import runs_of
from stratalog.bridges.export.offset_map import translated
from stratalog.bridges.export.options import ExportOptions
from stratalog.bridges.export.parts import ExportedPartition, ExportPiece
from stratalog.bridges.export.target import OffsetsNotKeptError
from stratalog.bridges.jobs.export import main as job
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.engine.driver.report import Report
from stratalog.engine.reading.bounds import Committed
from stratalog.partitions.errors import InvalidCallError
from tests.bridges.memory_source import MemorySource
from tests.bridges.memory_target import Killed, MemoryCluster, MemoryTarget
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

KEPT = ExportOptions(piece_bytes=1)  # one record per piece
NEW = ExportOptions(keep=False, piece_bytes=1)


def exported(
    live: LiveCluster,
    there: MemoryCluster,
    options: ExportOptions,
    at: Callable[[str], None] = lambda step: None,
    topic: str = "t",
) -> Report:
    return with_ports(export, ports_of(live.cluster))(MemoryTarget(there, at), [topic], options)


def with_gaps(tmp_path: Path) -> tuple[LiveCluster, list[tuple[int, bytes | None]]]:
    """A topic whose offsets have gaps of one offset and of several, including a gap at its end; and its
    records.
    """
    source = MemorySource(2)
    log = source.logs[0]
    log.append("a", "b", gaps=1)
    log.append("c", None, gaps=4)
    log.append("d", gaps=2)
    live = LiveCluster(tmp_path)
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], MirrorOptions()).raise_for_failures()
    return live, [(offset, record.value) for offset, record in log.records.items()]


def steps_of(live: LiveCluster, options: ExportOptions) -> int:
    """The number of steps of an undisturbed export."""
    steps: list[str] = []
    exported(live, MemoryCluster(), options, steps.append).raise_for_failures()
    return len(steps)


def killed_at(number: int) -> Callable[[str], None]:
    """A run that dies before its step of that number."""
    steps = iter(range(10_000))

    def at(step: str) -> None:
        if next(steps) == number:
            raise Killed

    return at


def test_offsets_are_kept_and_gaps_are_gaps_there(tmp_path: Path) -> None:
    live, records = with_gaps(tmp_path)
    there = MemoryCluster()
    report = exported(live, there, KEPT).raise_for_failures()
    assert there.topics["t"][0].committed() == records
    assert len(there.topics["t"][0].slots) == 12, "the end is the same, too"
    row = report.rows[0]
    assert [row[name] for name in ("exported", "end", "lag", "records", "gaps", "target_end")] == [
        12,
        12,
        0,
        5,
        7,
        12,
    ]
    assert exported(live, there, KEPT).raise_for_failures().totals["records"] == 0
    first = there.topics["t"][0].slots[0]
    assert first is not None
    assert (first.timestamp_ms, first.key, first.headers) == (1_700_000_000_000, b"k0", [("h", b"a"), ("h", None)])


@pytest.mark.parametrize("options", [KEPT, NEW], ids=["kept", "new"])
@pytest.mark.slow
def test_a_run_that_is_killed_at_any_step_and_repeated_writes_each_record_once(
    options: ExportOptions, tmp_path: Path
) -> None:
    live, records = with_gaps(tmp_path)
    steps = steps_of(live, options)
    assert steps > 10
    for number in range(steps):
        there = MemoryCluster()
        with pytest.raises(Killed):
            exported(live, there, options, killed_at(number))
        with suppress(Killed):  # the second run dies in the middle of the remaining steps
            exported(live, there, options, killed_at((steps - number) // 2))
        exported(live, there, options).raise_for_failures()
        found = there.topics["t"][0].committed()
        if options.keep:
            assert (found, len(there.topics["t"][0].slots)) == (records, 12), f"killed at step {number}"
        else:
            assert [value for _, value in found] == [value for _, value in records], f"killed at step {number}"


@pytest.mark.parametrize("number", range(12))
def test_a_run_that_stalled_writes_nothing_once_its_successor_runs(number: int, tmp_path: Path) -> None:
    live, records = with_gaps(tmp_path)
    there, steps = MemoryCluster(), iter(range(10_000))

    def at(step: str) -> None:
        if next(steps) == number:
            exported(live, there, NEW).raise_for_failures()

    report = exported(live, there, NEW, at)
    assert [failure.code for failure in report.failures] == ["PRODUCER_FENCED"]
    assert [value for _, value in there.topics["t"][0].committed()] == [value for _, value in records]


def test_if_offsets_are_kept_a_fenced_run_begins_no_further_piece(tmp_path: Path) -> None:
    live, records = with_gaps(tmp_path)
    there, seen = MemoryCluster(), list[str]()

    def at(step: str) -> None:
        seen.append(step)
        if seen.count("commit") == 3 and step == "commit":
            exported(live, there, KEPT).raise_for_failures()

    report = exported(live, there, KEPT, at)
    assert [failure.code for failure in report.failures] == ["PRODUCER_FENCED"]
    assert there.topics["t"][0].committed() == records


def test_bytes_that_arrive_after_the_wait_are_noticed_on_both_sides(tmp_path: Path) -> None:
    """A fence cannot prevent this case, but the report always shows it."""
    live, _ = with_gaps(tmp_path)
    there, seen = MemoryCluster(), list[str]()
    began_ms = live.clock.now_ms()

    def at(step: str) -> None:
        seen.append(step)
        if seen.count("append") == 2 and step == "append":
            exported(live, there, KEPT).raise_for_failures()
            assert live.clock.now_ms() - began_ms >= 15_000, "it waits for what may be under way"

    for report in (exported(live, there, KEPT, at), exported(live, there, KEPT)):
        assert [failure.code for failure in report.failures] == ["RECORDS_DIFFER"]


def test_records_that_were_deleted_here_are_a_start_there(tmp_path: Path) -> None:
    source = MemorySource(1)
    source.logs[0].start = source.logs[0].end = 5
    source.logs[0].append("a", "b")
    live, there = LiveCluster(tmp_path), MemoryCluster()
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], MirrorOptions()).raise_for_failures()
    exported(live, there, KEPT).raise_for_failures()
    assert there.topics["t"][0].committed() == [(5, b"a"), (6, b"b")]
    assert there.topics["t"][0].start == 5
    with pytest.raises(InvalidCallError, match="--new-offsets"):
        ExportOptions(start=5, name="x")


@pytest.mark.parametrize("ends", [[11], [6, 11], [4, 8, 11]])
def test_a_gap_above_the_limit_is_refused_wherever_pieces_begin(
    ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a gap at the end, and a gap without any record."""
    monkeypatch.setattr(kept, "MOST_GAP", 10)
    part = ExportedPartition(0, 0, 11, 0, 0, lambda start, end: ([], end))
    for start, end in zip([0, *ends], ends[:-1], strict=False):
        piece = ExportPiece(0, start, end, ())
        kept.check_gap("t", piece, part.gap)
        part.written(piece)
    with pytest.raises(OffsetsNotKeptError, match="t-0: 11 offsets from 0 have no record"):
        kept.check_gap("t", ExportPiece(0, part.position, 11, ()), part.gap)
    record = SourceRecord(5, 1, None, b"x", (), None)
    kept.check_gap("t", ExportPiece(0, 0, 16, (record,)), 0)
    with pytest.raises(OffsetsNotKeptError, match="t-0: 11 offsets from 6"):
        kept.check_gap("t", ExportPiece(0, 0, 17, (record,)), 0)


def test_a_gap_above_the_limit_stops_its_partition_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_GAP", 3)
    source, live, there = MemorySource(2), LiveCluster(tmp_path), MemoryCluster()
    source.logs[0].append("a", gaps=4)
    source.logs[0].append("b")
    source.logs[1].append(*"cdef")
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], MirrorOptions()).raise_for_failures()
    report = exported(live, there, KEPT)
    assert [(failure.item, failure.code) for failure in report.failures] == [("t-0", "OFFSETS_NOT_KEPT")]
    assert [value for _, value in there.topics["t"][1].committed()] == [b"c", b"d", b"e", b"f"]


def test_offsets_are_not_kept_where_others_have_written(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b"])
    there = MemoryCluster()
    there.make("t")
    there.foreign("t", b"theirs")
    report = exported(live, there, KEPT)
    assert [(one.item, one.code) for one in report.failures] == [("t", "OFFSETS_NOT_KEPT")]
    assert "--new-offsets" in report.failures[0].message
    report = exported(live, there, NEW).raise_for_failures()
    assert there.topics["t"][0].committed() == [(0, b"theirs"), (1, b"a"), (3, b"b")]
    assert report.rows[0]["target_end"] == 4


def test_a_map_translates_the_offsets_of_groups_and_is_a_delta_table(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b", "c"])
    there = MemoryCluster()
    there.make("t")
    there.foreign("t", b"theirs")
    live.cluster.groups.commit("g", {("t", 0): 2})
    live.cluster.groups.commit("at-end", {("t", 0): 3})
    live.cluster.groups.commit("busy", {("t", 0): 1})
    there.busy.add("busy")
    table = str(tmp_path / "map")
    options = ExportOptions(keep=False, offset_map=table)
    report = exported(live, there, options)
    assert [(one.item, one.code) for one in report.failures] == [("group busy", "NON_EMPTY_GROUP")]
    assert {name: there.groups[name]["t", 0].offset for name in ("g", "at-end")} == {"g": 3, "at-end": 4}
    live.append(["d"])
    assert exported(live, there, options).totals["map_rows"] == 1
    assert exported(live, there, options).totals["map_rows"] == 0
    rows = sorted((row["offset"], row["target_offset"], row["records"]) for row in rows_of(table))
    assert rows == [(0, 1, 3), (3, 5, 1)]


def test_a_map_gets_the_rows_of_a_journal_that_was_created_again(tmp_path: Path) -> None:
    """An error advises to delete the journal after a topic was created again."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b", "c"])
    there, table = MemoryCluster(), str(tmp_path / "map")
    options = ExportOptions(keep=False, offset_map=table)
    exported(live, there, options).raise_for_failures()
    live.cluster.topics.delete("t")
    live.topic()
    live.append(["d"])
    (failure,) = exported(live, there, options).failures
    journal = failure.message.rpartition(" ")[2]
    assert (failure.code, journal in there.topics) == ("INCONSISTENT_TOPIC_ID", True)
    del there.topics[journal]
    assert exported(live, there, options).raise_for_failures().totals["map_rows"] == 1
    assert sorted((row["offset"], row["target_offset"], row["records"]) for row in rows_of(table)) == [
        (0, 0, 3),
        (0, 4, 1),
    ]


def rows_of(table: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = DeltaTable(table).to_pyarrow_table().to_pylist()
    return found


def test_a_range_is_exported_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b", "c", "d"], at_ms=1_000)
    live.append(["e"], at_ms=90_000)
    live.cluster.groups.commit("g", {("t", 0): 3})

    def values(name: str, **given: object) -> list[bytes | None]:
        there = MemoryCluster()
        options = ExportOptions(keep=False, name=name, target_topic="x", **given)  # type: ignore[arg-type]
        exported(live, there, options).raise_for_failures()
        exported(live, there, options).raise_for_failures()
        assert not there.groups
        return [value for _, value in there.topics["x"][0].committed()]

    assert values("offsets", start=1, end=3) == [b"b", b"c"]
    assert values("times", start="1970-01-01T00:01:00Z") == [b"e"]
    assert values("lag", start=Committed("g")) == [b"d", b"e"]
    there = MemoryCluster()
    lag = ExportOptions(keep=False, name="lag", start=Committed("g"))
    exported(live, there, lag).raise_for_failures()
    live.append(["f"])
    assert exported(live, there, lag).totals["records"] == 0, "the range is that of the first run"
    other = ExportOptions(keep=False, name="lag", start=2)
    assert [one.code for one in exported(live, there, other).failures] == ["INVALID_REQUEST"]


def test_a_range_by_partition_is_the_same_in_any_order(tmp_path: Path) -> None:
    live, there = LiveCluster(tmp_path), MemoryCluster()
    live.topic(partitions=2)
    live.append(["a", "b", "c"])
    for start in ({0: 1, 1: 0}, {1: 0, 0: 1}):
        exported(live, there, ExportOptions(keep=False, name="x", start=start)).raise_for_failures()


def test_a_topic_that_was_created_again_there_starts_over_or_is_left_alone(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"])
    there = MemoryCluster()
    exported(live, there, KEPT).raise_for_failures()
    there.make("t")
    exported(live, there, KEPT).raise_for_failures()
    assert there.topics["t"][0].committed() == [(0, b"a")]
    there.make("t")
    there.foreign("t", b"theirs")
    assert [one.code for one in exported(live, there, KEPT).failures] == ["INCONSISTENT_TOPIC_ID"]


def test_records_go_at_their_own_pace_within_a_budget(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    for at_s in (0, 10, 20, 30):
        live.append([str(at_s)], at_ms=1_000 + at_s * 1000)
    there = MemoryCluster()
    began_ms = live.clock.now_ms()
    report = exported(live, there, ExportOptions(pace=2.0, budget_s=11)).raise_for_failures()
    assert [value for _, value in there.topics["t"][0].committed()] == [b"0", b"10", b"20"]
    assert report.totals["lag"] == 1
    assert live.clock.now_ms() - began_ms >= 10_000
    exported(live, there, ExportOptions(pace=2.0)).raise_for_failures()
    assert len(there.topics["t"][0].committed()) == 4


def test_bytes_per_second_are_bounded(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["x" * 1000] * 5)
    began_ms = live.clock.now_ms()
    exported(live, MemoryCluster(), ExportOptions(throttle_bytes_per_s=1000, piece_bytes=1)).raise_for_failures()
    assert live.clock.now_ms() - began_ms >= 4000


def test_runs_are_records_side_by_side_on_both_sides() -> None:
    runs = runs_of([0, 1, 2, 5, 6, 7], [10, 11, 13, 14, 15, 20])
    assert runs == [(0, 10, 2), (2, 13, 1), (5, 14, 2), (7, 20, 1)]
    assert [translated(runs, 9, offset) for offset in range(11)] == [10, 11, 13, 14, 14, 14, 15, 20, 21, 21, None]
    assert translated([], 0, 0) is None


def test_a_dry_run_says_what_would_be_exported_and_writes_nothing(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b"])
    there = MemoryCluster()
    report = exported(live, there, ExportOptions(dry_run=True)).raise_for_failures()
    assert [(row["start"], row["end"]) for row in report.rows] == [(0, 2)]
    assert not there.topics


def test_typed_values_are_text_or_json_there(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.cluster.topics.create("t", replication_factor=3, key="STRING", value="n INT, s STRING")
    live.cluster.produce("t", [{"id": "k", "n": 1, "s": "é"}], key="id").raise_for_failures()
    there = MemoryCluster()
    exported(live, there, ExportOptions()).raise_for_failures()
    (record,) = there.topics["t"][0].slots
    assert record is not None
    assert (record.key, record.value) == (b"k", b'{"n": 1, "s": "\\u00e9"}')


def test_a_call_that_contradicts_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    asked = ["--cluster", str(live.file), "--to", "localhost:1", "t"]
    for given, message in (
        (["--start", "5"], "--new-offsets"),
        (["--start", "5", "--new-offsets"], "--name"),
        (["--map", "x"], "there is no map of offsets"),
        (["--config", "acks=1"], "do not set acks"),
        (["--pace", "fast"], "is not a speed"),
    ):
        assert job([*asked, *given]) == 2
        assert message in capsys.readouterr().err
