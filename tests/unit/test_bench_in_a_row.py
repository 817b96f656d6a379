"""Appends in a row: a run of a few appends. No timing is ever asserted."""

from __future__ import annotations

from pathlib import Path

from bench.bench import TOPIC, Bench
from bench.growth import REPLICAS
from bench.in_a_row import compared, files, run
from bench.options import bench_options


def test_a_line_is_printed_after_every_few_appends(tmp_path: Path) -> None:
    made = Bench(None, bench_options({}, tmp_path)).cluster("row", brokers=REPLICAS)
    made.cluster.topics.create(TOPIC, partitions=2, replication_factor=REPLICAS)
    lines = run(made, 3, 2)
    assert [line.split()[0] for line in lines] == ["2", "3"]
    assert files(made) == 1 + 2 * 3, "a register, and two names of each append"
    assert compared(made, 1).startswith("processor time: ")
