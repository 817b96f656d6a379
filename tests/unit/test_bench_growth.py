"""How costs grow: the fit, its line, and the benchmark at tiny sizes. No timing is ever asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import growth
from bench.bench import TOPIC, Bench
from bench.growth_table import Cost, GrowthLine, exponent, sizes_up_to
from bench.options import bench_options
from bench.table import Line, render
from stratalog.partitions.errors import InvalidCallError


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(lambda n: 7.0, 0.0), (lambda n: 0.003 * n, 1.0), (lambda n: 2.0 * n**2, 2.0), (lambda n: 5 / n, -1.0)],
)
def test_the_exponent_of_a_power_is_found(cost: Callable[[int], float], expected: float) -> None:
    assert exponent({size: cost(size) for size in (10, 100, 1000, 5000)}) == pytest.approx(expected)


def test_between_flat_and_linear_a_cost_bends() -> None:
    """The costs have a constant part and a part per item, so the last two sizes show the growth best."""
    costs = {size: 1.0 + size / 100 for size in (10, 100, 1000)}
    last = {size: costs[size] for size in (100, 1000)}
    assert 0 < exponent(costs) < exponent(last) < 1


def test_a_fit_takes_two_sizes() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        exponent({10: 1.0})


def test_sizes_are_powers_of_ten_and_the_largest() -> None:
    assert [*sizes_up_to(1000)] == [10, 100, 1000]
    assert [*sizes_up_to(5000)] == [10, 100, 1000, 5000]
    assert [*sizes_up_to(20)] == [10, 20]


def test_a_line_shows_every_cost_and_is_judged_by_the_worst() -> None:
    costs = {10: Cost(0.005, 39, 12_000), 100: Cost(0.005, 39, 12_000), 1000: Cost(0.05, 39, 12_000)}
    line = GrowthLine("append", costs)
    assert line.cells == (
        *("append", "10, 100, 1,000", "5.0, 5.0, 50 ms", "0.50 (1.00)", "39, 39, 39", "0.00 (0.00)"),
        *("12 kB, 12 kB, 12 kB", "0.00 (0.00)", "10.0 in 100", "linear"),
    )
    assert len(line.cells) == len(line.headings)
    flat = Cost(0.005, 39, 12_000)
    assert GrowthLine("append", {10: flat, 100: flat}).verdict == "flat"
    assert GrowthLine("retain", {10: flat, 100: Cost(0.005, 390, 12_000)}).verdict == "linear"
    assert GrowthLine("tier", {10: flat, 100: Cost(0.5, 39, 12_000)}).verdict == "grows faster than the size"
    assert GrowthLine("poll", {10: flat, 100: Cost(0.015, 39, 12_000)}).verdict == "grows slower than the size"
    assert GrowthLine("read", {10: Cost(0.0, 0, 0), 100: Cost(0.0, 0, 0)}).verdict == "flat"


def test_lines_of_two_kinds_are_two_tables() -> None:
    flat = Cost(0.005, 39, 12_000)
    text = render([Line("one", "1 s", "2 s", 2.0), GrowthLine("append", {10: flat, 100: flat}, "In memory.")])
    first, second, note = text.split("\n\n")
    assert first.startswith("| what ")
    assert second.startswith("| operation ")
    assert note == "[1] In memory."


@pytest.mark.slow
def test_the_logs_that_growth_is_measured_on_are_intact(tmp_path: Path) -> None:
    """The written files equal those of appends and merges: intact on all replicas, and readable to the end."""
    bench = _bench(tmp_path)
    for merged, followers, producers in ((True, True, 30), (False, True, 0), (False, False, 0)):
        made = bench.cluster("laid-out", brokers=growth.REPLICAS)
        made.cluster.topics.create(TOPIC, partitions=1, replication_factor=growth.REPLICAS)
        end = growth.lay_out(made, 3, merged=merged, followers=followers, producers=producers)
        made.cluster.replicate().raise_for_failures()
        growth.append(made.cluster)
        made.cluster.verify(deep=True).raise_for_failures()
        assert end == 4 * growth.RECORDS
        [planned] = made.cluster.plan_read(TOPIC).partitions
        assert planned.end == end + growth.RECORDS
        made.remove()


def test_a_benchmark_without_spark_has_no_session(tmp_path: Path) -> None:
    with pytest.raises(InvalidCallError, match="needs Spark"):
        _ = _bench(tmp_path).spark


@pytest.mark.nightly
def test_growth_is_measured_at_any_size(tmp_path: Path) -> None:
    lines = growth.growth(_bench(tmp_path))
    assert len({line.what for line in lines}) == len(lines) == 19
    for line in lines:
        assert len(line.costs) >= 2, line.what
        assert all(cost.requests > 0 for cost in line.costs.values()), line.what
    [commit] = [line for line in lines if line.what == "the n-th metadata commit"]
    assert all(cost.bytes > 1000 for cost in commit.costs.values())
    assert [bool(line.note) for line in lines] == [True] + [False] * 18


def _bench(folder: Path) -> Bench:
    return Bench(None, bench_options({"GROWTH": "20", "BENCH_DIR": str(folder / "bench")}, folder))
