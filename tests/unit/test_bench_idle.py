"""The benchmark of idle partitions: its prepared log is like any other log, and its requests are counted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from bench import idle
from bench.bench import TOPIC, Bench
from bench.costs import s3_cluster_file
from bench.options import bench_options
from stratalog import Cluster
from tests.s3_server import S3Endpoint

PARTITIONS = 4
FEW, MANY = 5, 400
NAMES = 3
"""The names of an idle replica: a segment, an epoch, a high watermark."""
PAGE = 1000


@pytest.mark.slow
def test_the_partitions_are_as_an_append_and_maintain_leave_them(tmp_path: Path) -> None:
    made = Bench(None, bench_options({}, tmp_path)).cluster("idle", brokers=idle.REPLICAS)
    idle.lay_out(made.cluster, PARTITIONS)
    assert idle.until_idle(made.cluster) > 1
    made.cluster.verify(deep=True).raise_for_failures()
    leading = [row for row in made.cluster.describe(TOPIC).rows if row["role"] == "leader"]
    assert [(row["high_watermark"], row["remote_end"]) for row in leading] == [(1, 1)] * PARTITIONS
    assert all(len(view.isr) == idle.REPLICAS for view in made.cluster.image.views(TOPIC))
    run = idle.maintain(made.folder / "cluster.toml")
    assert run.items == 0
    assert run.requests > 0
    assert run.peak_mb > 0
    made.remove()


@pytest.mark.slow
def test_maintain_has_nothing_to_do_for_partitions_that_were_put_there_and_settled(tmp_path: Path) -> None:
    """The files of these partitions are written directly to their places in the bucket; their bytes are
    ordinary.
    """
    made = Bench(None, bench_options({}, tmp_path)).cluster("idle", brokers=idle.REPLICAS)
    idle.lay_out(made.cluster, 1, idle.SEEN)
    idle.until_idle(made.cluster)
    put = partial(idle.put_below, Path("/"))
    idle.lay_out(made.cluster, PARTITIONS, configs=idle.UNTIERED, put=put)
    file = made.folder / "cluster.toml"
    idle.settle(file)
    assert idle.maintain(file).items == 0
    made.cluster.verify(deep=True).raise_for_failures()
    idle.append_one(made.cluster, [1]).raise_for_failures()
    assert idle.maintain(file).items > 0
    made.remove()


def test_a_line_shows_the_requests_of_the_partitions_that_have_changed() -> None:
    run = idle.Run(seconds=1.25, cpu_s=0.5, requests=3_600, peak_mb=240.4, items=500)
    line = idle.idle_line("maintain", run, of=100, besides=100)
    assert line.cells == ("maintain", "1.2 s", "0.5 s", "240 MB", "3,600", "35.0 of 100")
    assert len(line.cells) == len(line.headings)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.s3
def test_an_idle_round_on_a_bucket_is_a_request_more_for_each_thousand_names(
    tmp_path: Path, s3_endpoint: S3Endpoint
) -> None:
    """Every step is due, and the driver has no caches. 10,000 partitions are 27 more pages per broker, below 500
    requests in all.
    """

    def requests_of(partitions: int) -> int:
        name = f"idle-{partitions}"
        file = s3_cluster_file(tmp_path / name, s3_endpoint, name)
        cluster = Cluster.format(file)
        idle.lay_out(cluster, partitions)
        idle.until_idle(cluster)
        cluster.close()
        run = idle.maintain(file)
        assert run.items == 0
        return run.requests

    few, many = requests_of(FEW), requests_of(MANY)
    assert many - few == idle.REPLICAS * (MANY * NAMES // PAGE)
    assert few + idle.REPLICAS * (10_000 * NAMES // PAGE) <= 500
