"""The benchmarks: options, the table, and the measurements of the metadata benchmarks. No timing is ever
asserted.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import __main__ as bench_job
from bench import checkpointing, large_cluster, opening, page, replaying
from bench.bench import Bench
from bench.measuring import Spread, in_turn
from bench.memory import own_peak
from bench.options import NAMES, BenchOptions, bench_options, size_text
from bench.table import Limit, Line, ratio_text, render, speed_line
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import FenceBrokerRecord
from stratalog.partitions.amounts import parse_size
from stratalog.partitions.errors import InvalidCallError, StorageError

HERE = Path("bench-data")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2_000_000_000),
        ("2gb", 2_000_000_000),
        (" 200 MB ", 200_000_000),
        ("1GiB", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("64k", 64_000),
        ("64KiB", 65_536),
        ("12345", 12_345),
        ("12345B", 12_345),
        ("9007199254740993", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2 GBs", "-1GB", "2PB", "1,5GB", "1e9", "8388608TiB", "9" * 400])
def test_an_invalid_size_is_named(text: str) -> None:
    with pytest.raises(InvalidCallError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (64_000, "64 kB"), (47_700_000, "47.7 MB"), (1.53e9, "1.53 GB")]
)
def test_sizes_are_reported_in_three_digits(size: float, text: str) -> None:
    assert size_text(size) == text


def test_an_empty_environment_measures_everything_on_two_gigabytes() -> None:
    options = bench_options({}, HERE)
    assert options == BenchOptions(
        2_000_000_000, 8, HERE.absolute(), NAMES, 10_000, 10_000, 1_000_000, 100_000, 1000
    )
    assert options.records == 1_953_125


def test_the_environment_chooses() -> None:
    given = {
        "BYTES": "1GiB",
        "PARTITIONS": "3",
        "BENCH_DIR": "/tmp/b",
        "ONLY": "scan, append",
        "IDLE_PARTITIONS": "5",
        "RESTORE_PARTITIONS": "20",
        "METADATA_PARTITIONS": "2000",
        "COMMITS": "300",
        "GROWTH": "5000",
    }
    only = ("scan", "append")
    assert bench_options(given, HERE) == BenchOptions(1 << 30, 3, Path("/tmp/b"), only, 5, 20, 2000, 300, 5000)
    assert bench_options(dict.fromkeys(given, ""), HERE) == bench_options({}, HERE)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BYTES", "many", "'many' is not a size"),
        ("BYTES", "1MB", "BYTES is 1000000: give at least"),
        ("PARTITIONS", "0", "PARTITIONS is '0'"),
        ("PARTITIONS", "x", "PARTITIONS is 'x'"),
        ("IDLE_PARTITIONS", "0", "IDLE_PARTITIONS is '0'"),
        ("METADATA_PARTITIONS", "10", "METADATA_PARTITIONS is '10': give a number from 1000 to"),
        ("COMMITS", "-1", "COMMITS is '-1'"),
        ("GROWTH", "5", "GROWTH is '5': give a number from 20 to"),
        ("ONLY", "scan,scam", "ONLY names 'scam': give some of calls, latency"),
    ],
)
def test_an_error_in_the_environment_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidCallError, match=message):
        bench_options({name: value}, HERE)


def test_a_limit_looks_at_the_ratio_as_it_is_shown() -> None:
    assert Limit(0.8).holds(0.7951)
    assert not Limit(0.8).holds(0.79)
    assert Limit(1, at_most=True).holds(1.004)
    assert not Limit(1, at_most=True).holds(1.01)
    assert (str(Limit(0.8)), str(Limit(1, at_most=True))) == (">= 0.8", "<= 1")
    assert (ratio_text(0.804), ratio_text(9.994), ratio_text(17.04)) == ("0.80", "9.99", "17.0")


def test_a_line_says_on_which_side_of_its_limit_it_is() -> None:
    assert Line("a", "1", "2", 0.5).verdict == ""
    assert Line("a", "1", "2", None, Limit(0.8)).verdict == ""
    assert Line("a", "1", "2", 0.9, Limit(0.8)).verdict == "ok"
    assert Line("a", "1", "2", 0.7, Limit(0.8)).verdict == "below"
    assert Line("a", "1", "2", 1.5, Limit(1, at_most=True)).verdict == "above"


def test_speed_is_a_part_of_the_peers() -> None:
    line = speed_line("replicate", 1_500_000_000, ours_s=2.0, peer_s=1.5, at_least=0.8)
    assert line.cells == ("replicate, 1.5 GB", "2.00 s, 750 MB/s", "1.50 s, 1000 MB/s", "0.75", ">= 0.8", "below")


def test_the_median_of_several_turns_is_reported_with_the_range_and_ratios_are_of_each_turn() -> None:
    """A slow turn of both sides changes no ratio; a slow turn of our side does."""
    ours, peer = Spread([1.0, 4.0, 2.0]), Spread([2.0, 8.0, 2.0])
    assert f"{ours:.1f} s" == "2.0 (1.0 to 4.0) s"
    assert (peer / ours).turns == (2.0, 2.0, 1.0)
    line = speed_line("replicate", 1_000_000_000, ours, peer, at_least=1.5)
    assert line.cells[3:] == ("2.00 (1.00 to 2.00)", ">= 1.5", "ok")
    assert f"{ours / 2 * 1000:.0f} ms" == "1000 (500 to 2000) ms"
    assert pickle.loads(pickle.dumps(ours)).turns == ours.turns


def test_pieces_of_work_take_turns_and_each_is_measured_five_times() -> None:
    asked: list[str] = []
    first, second = in_turn(lambda: float(asked.append("a") or 1), lambda: float(asked.append("b") or 2))
    assert "".join(asked) == "ab" * 5
    assert (first, second, first.turns) == (1, 2, (1.0,) * 5)


def test_the_table_is_markdown_with_notes_below_it() -> None:
    lines = [
        Line("one", "1 s", "2 s", 2.0, Limit(0.8)),
        Line("two", "3 s", "2 s", 0.667, Limit(0.8), "The disk."),
        Line("three", "3 s", "2 s", note="The disk."),
    ]
    assert render(lines).splitlines() == [
        "| what      | ours | peer | ratio | target |       |",
        "| --------- | ---- | ---- | ----- | ------ | ----- |",
        "| one       | 1 s  | 2 s  | 2.00  | >= 0.8 | ok    |",
        "| two [1]   | 3 s  | 2 s  | 0.67  | >= 0.8 | below |",
        "| three [1] | 3 s  | 2 s  |       |        |       |",
        "",
        "[1] The disk.",
    ]


def test_a_run_fills_its_place_on_the_page_and_every_other_figure_stays() -> None:
    """Each benchmark has a place with a command; a second run replaces the first."""
    for name in NAMES:
        text = page.of(name).read_text(encoding="utf-8")
        found = page.command(name, {"BYTES": "1GB", "ONLY": "scan", "KAFKA": ""})
        assert found == f"make bench ONLY={name} BYTES=1GB"
        assert f"`make bench ONLY={name}" in text.partition(page.begin(name))[2].partition(page.END)[0]
        once = page.filled(text, name, f"`{found}`", [Line("one", "1 s", "2 s", 2.0)])
        assert once.count("| one  | 1 s") == 1
        assert once.count(page.END) == text.count(page.END)
        assert page.filled(once, name, f"`{found}`", [Line("one", "1 s", "2 s", 2.0)]) == once
    places = [path.read_text(encoding="utf-8").count(page.END) for path in {page.of(name) for name in NAMES}]
    assert sum(places) == len(NAMES)
    with pytest.raises(InvalidCallError, match="the page of walk has no place for its figures"):
        page.filled(text, "walk", "", [])


# --------------------------------------------------------------------------------- the metadata


def test_the_large_cluster_is_that_of_the_kip() -> None:
    """KIP-630: 100 brokers, topics of 10 partitions with three replicas."""
    image = large_cluster.folded(ClusterImage(), large_cluster.example_records(25))
    assert len(image.brokers) == 100
    assert sorted(len(topic.partitions) for topic in image.topics.values()) == [5, 10, 10]
    assert {len(p.isr) for topic in image.topics.values() for p in topic.partitions} == {3}
    assert image == large_cluster.folded(ClusterImage(), large_cluster.example_records(25)), "the same every time"


def test_one_record_for_each_partition_leads_where_one_record_in_all_does() -> None:
    """The figure to which the few bytes of a fenced broker are compared has the same meaning."""
    image = large_cluster.folded(ClusterImage(), large_cluster.example_records(200))
    after = apply(image, image.next_offset, [FenceBrokerRecord(broker_id=large_cluster.FENCED)])
    records = list(large_cluster.one_record_each(image, after))
    spelt = apply(image, image.next_offset, records)
    assert len(records) > 0
    for one, other in zip(after.topics.values(), spelt.topics.values(), strict=True):
        assert [(p.leader, p.isr) for p in one.partitions] == [(p.leader, p.isr) for p in other.partitions]
    led = {broker: large_cluster.partitions_led(after, broker) for broker in after.brokers}
    assert led[large_cluster.FENCED] == []
    assert sum(map(len, led.values())) == 200


def test_each_measured_commit_changes_a_partition() -> None:
    image = large_cluster.folded(ClusterImage(), large_cluster.example_records(20))
    after = large_cluster.commit_each(image, 45)
    assert after.next_offset == image.next_offset + 45
    epochs = [partition.partition_epoch for partition in after.topic("topic-000000").partitions]
    assert epochs == [5] * 5 + [4] * 5
    assert after.topic("topic-000000").partitions[0].isr == image.topic("topic-000000").partitions[0].isr[:2]


def test_the_cost_of_one_small_record_is_measured_at_any_size_of_the_cluster() -> None:
    measured = large_cluster.measure_fencing(200)
    assert measured.changed > 0
    assert measured.bytes_per_partition > measured.changed * 50
    lines = large_cluster.fencing_lines(measured, measured)
    assert lines[0].cells[:2] == ("fence a broker, 200 partitions", "42 B")
    assert lines[0].ratio == measured.bytes_per_partition / 42
    assert lines[-1].ratio == 1
    assert all(line.limit is not None for line in lines)


def test_snapshots_are_measured_at_any_size(tmp_path: Path) -> None:
    generated = checkpointing.generate(tmp_path, 30)
    loaded, codec_s = checkpointing.load(tmp_path, 30)
    assert generated.size_bytes == loaded.size_bytes > 0
    with pytest.raises(AssertionError, match="of 31 partitions was loaded as 30"):
        checkpointing.load(tmp_path, 31)
    assert codec_s > 0


def test_a_shape_compares_the_time_for_a_partition_with_the_size_before() -> None:
    def taken(seconds: float) -> checkpointing.Taken:
        return checkpointing.Taken(seconds, 200_000_000, 1000)

    lines = checkpointing.checkpoint_lines(
        [
            checkpointing.Checkpointing(10, taken(1.0), taken(2.0), 1.0),
            checkpointing.Checkpointing(100, taken(9.0), taken(30.0), 5.0),
        ]
    )
    assert [line.cells[1:] for line in lines] == [
        ("1.00 s, 1 kB, peak memory 200 MB", "", "", "", ""),
        ("2.00 s, 1 kB, peak memory 200 MB", "", "", "", ""),
        ("2.00 s", "1.00 s", "2.00", "<= 3", "ok"),
        ("9.00 s, 1 kB, peak memory 200 MB", "", "0.90", "<= 1.25", "ok"),
        ("30.00 s, 1 kB, peak memory 200 MB", "", "1.50", "<= 1.25", "above"),
        ("30.00 s", "5.00 s", "6.00", "<= 3", "above"),
    ]


def test_the_peak_is_that_of_the_work_and_not_of_earlier_work() -> None:
    size = 64_000_000
    with own_peak() as first:
        held = bytes(size) + b"1"
    del held
    with own_peak() as second:
        pass
    found = first.bytes is not None and second.bytes is not None
    assert found == Path("/proc/self/status").exists()
    assert not found or first.bytes - second.bytes > size // 2


@pytest.mark.slow
def test_opening_is_measured_at_any_size(tmp_path: Path) -> None:
    measured = opening.measure_opening(tmp_path, 30)
    assert measured.cache_bytes > 0
    [line] = opening.opening_lines([measured])
    assert line.what.startswith("open, 30 partitions remembered in ")
    measured = opening.Opening(30, 2.0, 0.15, 0.05, 1000)
    [line] = opening.opening_lines([measured])
    assert line.cells[1:] == ("150 ms; from a snapshot 2.00 s", "50 ms + 100 ms", "1.00", "<= 1", "ok")


@pytest.mark.slow
def test_replaying_is_measured_at_any_size(tmp_path: Path) -> None:
    log = replaying.begin_log(tmp_path)
    replaying.write_commits(log, range(0, 20, 2))
    replaying.write_commits(log, range(1, 20, 2))
    measured = replaying.measure_replay(tmp_path, log, 20)
    assert measured.replay_bytes > measured.load_bytes > 0
    with pytest.raises(AssertionError, match="21 commits were replayed up to offset"):
        replaying.measure_replay(tmp_path, log, 21)
    line = replaying.replay_line(replaying.Replaying(20, 5.0, 2000, 0.25, 1000))
    assert line.cells[1:] == ("0.250 s, 1 kB", "5.0 s, 2 kB", "20.0", ">= 10", "ok")


def test_a_benchmark_that_fails_is_named_stops_no_other_and_leaves_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: Bench) -> list[Line]:
        raise StorageError("the disk is full")

    session = SimpleNamespace(version="4", stop=lambda: None)
    monkeypatch.setattr(bench_job, "spark_session", lambda _, settings: session)
    measured = {"plan": (failing,), "calls": (lambda _: [Line("calls", "7", "7", 1.0)],)}
    monkeypatch.setattr(bench_job, "_BENCHMARKS", measured)
    monkeypatch.setattr(sys, "argv", ["bench"])
    figures = tmp_path / "performance.md"
    figures.write_text("".join(f"{page.begin(name)}{name} before\n{page.END}" for name in measured))
    monkeypatch.setattr(page, "PAGE", figures)
    monkeypatch.setenv("BENCH_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ONLY", "plan,calls")
    assert bench_job.main() == bench_job.SOMETHING_FAILED
    text = capsys.readouterr()
    assert "| calls" in text.out
    assert text.err.endswith("bench: plan: KAFKA_STORAGE_ERROR: the disk is full\n")
    assert "plan before" in figures.read_text()
    assert "calls before" not in figures.read_text()
