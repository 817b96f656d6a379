"""A cluster of buckets, to compare the requests of a run with the estimate of its dry run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from bench import calls
from bench.bench import TOPIC, cluster_file
from bench.calls import BROKERS, CountedCluster
from stratalog import Cluster, Report
from stratalog.engine.driver.estimate import Estimate
from stratalog.partitions.clock import Clock
from stratalog.partitions.records import HEADERS
from stratalog.partitions.store import Store, StoreCounts, StoreOptions

TIERED = {"remote_storage_enable": "true", "segment_bytes": "1", "retention_ms": "-1"}


@dataclass(frozen=True)
class Scene:
    """A run, and the cluster before it."""

    what: str
    prepare: Callable[[Cluster], None]
    run: Callable[[Cluster, bool], Report]


def topic(cluster: Cluster, **configs: str) -> None:
    cluster.topics.create(
        TOPIC,
        partitions=2,
        replication_factor=BROKERS,
        configs={name.replace("_", "."): value for name, value in configs.items()},
    )


def append(
    cluster: Cluster, times: int, value: Callable[[], bytes] = lambda: b"v", acks: Literal["all", "leader"] = "all"
) -> None:
    for number in range(times):
        batch = pa.RecordBatch.from_pydict(
            {
                "timestamp": pa.array([1_000], pa.timestamp("us", "UTC")),
                "key": pa.array([b"%d" % number]),
                "value": pa.array([value()]),
                "headers": pa.nulls(1, HEADERS),
            }
        )
        cluster.append_batches(TOPIC, {0: [batch], 1: [batch]}, acks=acks).raise_for_failures()


class Buckets(CountedCluster):
    """Brokers and remote tier count as buckets; only delta-rs knows that the tables are in a folder."""

    def _open(self, uri: str, options: StoreOptions, clock: Clock) -> Store:
        store = super()._open(uri, options, clock)
        if uri.endswith("/remote"):
            store.uri = "memory://remote"
        return store

    def sent_by(self, run: Callable[[], Report]) -> Estimate:
        """The requests of a run, as S3 would bill them."""
        before = self._counts()
        run().raise_for_failures()
        return Estimate.of(replace(self._counts() - before, copies=0))

    def _counts(self) -> StoreCounts:
        return sum((root.counts.snapshot() for root in self._roots.values()), StoreCounts())


def buckets_with(folder: Path, voters: int) -> Buckets:
    """A cluster with this number of voters."""

    def with_voters(*given: Any) -> Path:
        file = cluster_file(*given)
        file.write_text(file.read_text().replace("voters = [1]", f"voters = {list(range(1, voters + 1))}"))
        return file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "cluster_file", with_voters)
        return Buckets(folder)
