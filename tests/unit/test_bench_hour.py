"""The hour of a producer: its figures, and a run of a second. No timing is ever asserted."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from bench.bench import TOPIC, Bench
from bench.growth import RECORDS, REPLICAS
from bench.hour import WARM_UP, Minute, against, p99, run
from bench.options import bench_options
from stratalog.partitions.offsets import FoundOffset


def test_a_hundredth_of_the_appends_is_at_the_p99_or_above() -> None:
    assert p99([float(number) for number in range(1000)]) == 990.0
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([]) == 0.0


def test_the_last_minutes_are_reported_next_to_the_first() -> None:
    minutes = [
        Minute(number, [0.010 * number] * 100, cpu_s=0.5, files=20.0, most_files=25, producer_mb=100.0 + number)
        for number in range(1, 7)
    ]
    found = {one.cells[0]: one.cells for one in against(minutes)}
    assert found["append, median"] == ("append, median", "15.0 ms", "55.0 ms", "3.67")
    assert found["append, CPU"] == ("append, CPU", "5.0 ms", "5.0 ms", "1.00")
    assert found["files per partition, maximum"][1:] == ("25.0", "25.0", "1.00")
    assert found["producer, resident"][1:3] == ("102.0 MB", "106.0 MB")
    assert found["commit of a group, median"][1:] == ("0.0 ms", "0.0 ms", "")
    assert all(len(one.cells) == len(one.headings) for one in against(minutes))


@pytest.mark.slow
def test_a_run_counts_its_appends_its_files_and_its_records(tmp_path: Path) -> None:
    given = Namespace(seconds=1, rate=10.0, partitions=2, commit_every=1)
    made = Bench(None, bench_options({}, tmp_path)).cluster("hour", brokers=REPLICAS)
    made.cluster.topics.create(TOPIC, partitions=2, replication_factor=REPLICAS)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as maintain:
        [minute] = run(made, given, maintain)
        ends = made.cluster.offsets(TOPIC, "latest").values()
        maintain.communicate(b"\n")
    found = sum(end.offset for end in ends if isinstance(end, FoundOffset))
    assert found == (2 * WARM_UP + len(minute.append_s)) * RECORDS
    assert minute.append_s
    assert minute.commit_s
    assert minute.files > 0
    assert minute.metadata_files > 0
    assert len(minute.cells) == len(minute.headings)
    made.remove()


@pytest.mark.slow
def test_a_maintain_that_ended_ends_the_run(tmp_path: Path) -> None:
    given = Namespace(seconds=1, rate=10.0, partitions=1, commit_every=0)
    made = Bench(None, bench_options({}, tmp_path)).cluster("hour", brokers=REPLICAS)
    made.cluster.topics.create(TOPIC, partitions=1, replication_factor=REPLICAS)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as maintain:
        maintain.wait()
        with pytest.raises(AssertionError, match="maintain ended with status 3"):
            list(run(made, given, maintain))
    made.remove()
