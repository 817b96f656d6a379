"""The requests to object stores in the estimate of a dry run, compared with those of the run.

Each of the two has a separate driver, like two commands. Stores in memory count as buckets here, and a small copy
costs the requests that it costs on S3: a GET and a PUT.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.bench import TOPIC
from bench.calls import BROKERS
from bench.cost_table import read_prices
from stratalog import Cluster, Report
from stratalog.engine.driver.estimate import GET_DOLLARS, PUT_DOLLARS, Estimate
from stratalog.engine.driver.planned import copies, uploads
from stratalog.partitions.segments.reader import forget
from tests.ports import ports_of
from tests.unit.estimate_harness import TIERED, Buckets, Scene, append, buckets_with, topic

MIB = 1024 * 1024
SMALL_BYTES = 20_000
"""The bytes of the metadata and of registers."""
FILES = 16
"""The number of appends: the default of segment.merge.min.files."""


def small(cluster: Cluster) -> None:
    topic(cluster, retention_ms="-1")
    append(cluster, FILES)


def sealed(cluster: Cluster) -> None:
    topic(cluster, **TIERED)
    append(cluster, 3)


def sealed_again(cluster: Cluster) -> None:
    sealed(cluster)
    cluster.tier().raise_for_failures()
    append(cluster, 3)


def several_files(cluster: Cluster) -> None:
    topic(cluster, remote_storage_enable="true", segment_bytes="40000", retention_ms="-1")
    rng = np.random.default_rng(7)
    append(cluster, 12, value=lambda: rng.bytes(3_000))


def expired(cluster: Cluster) -> None:
    topic(cluster, retention_ms="1", file_delete_delay_ms="0")
    append(cluster, 3)


def removable(cluster: Cluster) -> None:
    expired(cluster)
    cluster.retain().raise_for_failures()


def tiered(cluster: Cluster) -> None:
    topic(cluster, **TIERED, local_retention_bytes="1", file_delete_delay_ms="0")
    append(cluster, 3)
    cluster.tier().raise_for_failures()


def tiered_expired(cluster: Cluster) -> None:
    tiered(cluster)
    cluster.topics.alter_configs(TOPIC, {"retention.ms": "1"})


def keyed(cluster: Cluster) -> None:
    topic(cluster, cleanup_policy="snapshot")
    append(cluster, 3)


def keyed_again(cluster: Cluster) -> None:
    keyed(cluster)
    cluster.snapshot(by_hand=True).raise_for_failures()
    append(cluster, 3)


def large_keyed(cluster: Cluster) -> None:
    topic(cluster, cleanup_policy="snapshot")
    rng = np.random.default_rng(7)
    append(cluster, 3, value=lambda: rng.bytes(4_000_000))


def idle_keyed(cluster: Cluster) -> None:
    keyed(cluster)
    for _ in range(2):
        cluster.snapshot(by_hand=True).raise_for_failures()


def litter(cluster: Cluster) -> None:
    tiered(cluster)
    remote = ports_of(cluster).storage.remote_store("the test")
    folder = cluster.image.topic(TOPIC).folder
    for number in range(3):
        assert remote.create(f"{folder}/0/{900 + number:020d}.0000000001.parquet", b"never committed")


def deleted(cluster: Cluster) -> None:
    tiered(cluster)
    folder = cluster.image.topic(TOPIC).folder
    cluster.topics.delete(TOPIC)
    remote = ports_of(cluster).storage.remote_store("the test")
    assert remote.create(f"{folder}/0/{900:020d}.0000000001.parquet", b"after the deletion")
    time.sleep(0.01)  # vacuum deletes objects of any age


def merge(cluster: Cluster, dry: bool) -> Report:
    return cluster.merge(dry_run=dry)


def tier(cluster: Cluster, dry: bool) -> Report:
    return cluster.tier(dry_run=dry)


def retain(cluster: Cluster, dry: bool) -> Report:
    return cluster.retain(dry_run=dry)


def snapshot(cluster: Cluster, dry: bool) -> Report:
    return cluster.snapshot(by_hand=True, dry_run=dry)


def vacuum(cluster: Cluster, dry: bool) -> Report:
    return cluster.vacuum(older_than_ms=0, dry_run=dry)


SCENES = [
    Scene("merge", small, merge),
    Scene("first tier", sealed, tier),
    Scene("tier", sealed_again, tier),
    Scene("tier of several files", several_files, tier),
    Scene("retain", expired, retain),
    Scene("retain, files to delete", removable, retain),
    Scene("retain, tiered", tiered, retain),
    Scene("retain, remote", tiered_expired, retain),
    Scene("snapshot", keyed, snapshot),
    Scene("next snapshot", keyed_again, snapshot),
    Scene("snapshots of more than a chunk", large_keyed, snapshot),
    Scene("no snapshot", idle_keyed, snapshot),
    Scene("vacuum", litter, vacuum),
    Scene("vacuum of a deleted topic", deleted, vacuum),
    Scene("nothing to merge", sealed, merge),
    Scene("nothing to tier", tiered, tier),
    Scene("nothing to retain", small, retain),
]


@pytest.fixture(params=[1, 3])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Buckets:
    """A cluster with one voter, or three."""
    return buckets_with(tmp_path, request.param)


@pytest.mark.sample(12)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.what)
def test_a_run_sends_what_its_dry_run_says(scene: Scene, made: Buckets) -> None:
    """The run sends the same number of PUT-priced requests, at most a fifth fewer GETs, and at least half of the
    estimated bytes of small files.
    """
    scene.prepare(made.cluster)
    forget()
    found = scene.run(made.driver(), True).raise_for_failures().estimate
    assert found is not None
    forget()
    driver = made.driver()
    sent = made.sent_by(lambda: scene.run(driver, False))
    assert found.puts == sent.puts
    assert sent.gets <= found.gets <= 1.2 * sent.gets
    assert 0.99 * sent.moved_bytes - SMALL_BYTES <= found.moved_bytes <= 2 * sent.moved_bytes
    assert found.dollars == pytest.approx(sent.dollars, rel=0.05)


def test_the_estimate_of_uploads_counts_files_that_are_written_again(tmp_path: Path) -> None:
    made = Buckets(tmp_path)
    several_files(made.cluster)
    report = made.driver().tier()
    assert report.totals["uploaded_files"] == 10  # 10 of 24 files; otherwise the scene would prove nothing


def test_only_requests_to_object_stores_count(tmp_path: Path) -> None:
    """Brokers in folders and a remote tier in a bucket: no request to a broker has a price."""
    made = Buckets(tmp_path)
    sealed(made.cluster)
    for broker, store in ports_of(made.cluster).storage.stores.items():
        store.uri = f"/brokers/{broker}"
    found = made.cluster.tier(dry_run=True).estimate
    assert found is not None
    assert (found.puts, found.gets) == (2 + 6 + 6 + 1, 3 * 6)
    ports_of(made.cluster).storage.remote.uri = "/remote"  # type: ignore[union-attr]
    folders = made.cluster.tier(dry_run=True)
    assert folders.estimate is None
    assert "estimate" not in str(folders)
    assert json.loads(folders.to_json())["estimate"] is None


@pytest.mark.parametrize("run", [merge, tier, retain, vacuum])
def test_a_dry_run_takes_a_broker_that_is_away(run: Callable[[Cluster, bool], Report], tmp_path: Path) -> None:
    made = Buckets(tmp_path)
    tiered(made.cluster)
    made.cluster.topics.alter_configs(TOPIC, {"retention.ms": "1"})
    made.cluster.brokers.fence(BROKERS)
    assert all(view.leader != BROKERS for view in made.cluster.image.views(TOPIC))
    del ports_of(made.cluster).storage.stores[BROKERS]  # type: ignore[attr-defined]
    assert run(made.cluster, True).estimate is not None


def test_a_run_has_no_estimate(tmp_path: Path) -> None:
    made = Buckets(tmp_path)
    sealed(made.cluster)
    assert made.cluster.tier().estimate is None


def test_a_report_shows_the_estimate() -> None:
    report = Report("tier", (), dry_run=True, estimate=Estimate(1_000, 10_000, 5))
    line = (
        "estimate: 1,000 requests at the price of a PUT, 10,000 at the price of a GET, 5 bytes moved: "
        "0.009000 dollars"
    )
    assert line in str(report).splitlines()
    assert html.escape(line) in report._repr_html_()
    assert json.loads(report.to_json())["estimate"] == {
        "put_requests": 1_000,
        "get_requests": 10_000,
        "moved_bytes": 5,
        "dollars": 0.009,
    }


def test_the_prices_are_those_of_the_page_of_costs() -> None:
    bucket = read_prices().bucket
    assert (bucket.put_per_1000, bucket.get_per_1000) == (1000 * PUT_DOLLARS, 1000 * GET_DOLLARS)


@pytest.mark.parametrize(
    ("size_bytes", "expected"), [(0, (1, 1)), (4 * MIB, (1, 1)), (5 * MIB, (3, 1)), (64 * MIB, (6, 4))]
)
def test_a_large_object_is_copied_in_parts(size_bytes: int, expected: tuple[int, int]) -> None:
    assert copies(size_bytes) == expected
    assert uploads(5 * MIB) == 1
    assert uploads(17 * MIB) == 4
