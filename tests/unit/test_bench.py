"""The pure parts of the benchmarks: options and the table. No timing is ever asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.benchmarks.options import NAMES, BenchOptions, bench_options, size_text
from jobs.benchmarks.table import Limit, Line, ratio_text, render, speed_line
from jobs.sizes import parse_size
from partitions.errors import InvalidCallError

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
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2 GBs", "-1GB", "2PB", "1,5GB", "1e9"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(InvalidCallError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (64_000, "64 kB"), (47_700_000, "47.7 MB"), (1.53e9, "1.53 GB")]
)
def test_sizes_are_told_in_three_digits(size: float, text: str) -> None:
    assert size_text(size) == text


def test_an_empty_environment_measures_everything_on_two_gigabytes() -> None:
    options = bench_options({}, HERE)
    assert options == BenchOptions(2_000_000_000, 8, HERE.absolute(), NAMES, 10_000)
    assert options.records == 1_953_125


def test_the_environment_chooses() -> None:
    given = {
        "BYTES": "1GiB",
        "PARTITIONS": "3",
        "BENCH_DIR": "/tmp/b",
        "ONLY": "scan, append",
        "IDLE_PARTITIONS": "5",
    }
    assert bench_options(given, HERE) == BenchOptions(1 << 30, 3, Path("/tmp/b"), ("scan", "append"), 5)
    assert bench_options(dict.fromkeys(given, ""), HERE) == bench_options({}, HERE)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BYTES", "many", "'many' is no size"),
        ("BYTES", "1MB", "BYTES is 1000000: below"),
        ("PARTITIONS", "0", "PARTITIONS is '0'"),
        ("PARTITIONS", "x", "PARTITIONS is 'x'"),
        ("IDLE_PARTITIONS", "0", "IDLE_PARTITIONS is '0'"),
        ("ONLY", "scan,scam", "ONLY names 'scam': it takes some of calls, append"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, value: str, message: str) -> None:
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


def test_the_table_is_markdown_with_notes_below_it() -> None:
    lines = [
        Line("one", "1 s", "2 s", 2.0, Limit(0.8)),
        Line("two", "3 s", "2 s", 0.667, Limit(0.8), "The disk."),
        Line("three", "3 s", "2 s", note="The disk."),
    ]
    assert render(lines).splitlines() == [
        "| what      | ours | peer | ratio | to reach |       |",
        "| --------- | ---- | ---- | ----- | -------- | ----- |",
        "| one       | 1 s  | 2 s  | 2.00  | >= 0.8   | ok    |",
        "| two [1]   | 3 s  | 2 s  | 0.67  | >= 0.8   | below |",
        "| three [1] | 3 s  | 2 s  |       |          |       |",
        "",
        "[1] The disk.",
    ]
