"""Computes the cost of a cluster in buckets, for docs/costs.md, from the requests of its operations, which are
counted on a real S3 server, and the prices of ``bench/prices.toml``.

The calls of the S3 client are counted without retries, as the operator of a bucket bills them. The three brokers
are prefixes of one bucket; multipart uploads are completed exclusively, as on Amazon's S3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.client
import numpy as np
import pyarrow as pa

from bench.bench import TOPIC, Bench, cluster_file, record_batch
from bench.cost_table import (
    DAY_S,
    MANY,
    TEN,
    Measured,
    Operation,
    Prices,
    Requests,
    append_line,
    break_even_line,
    break_even_mib,
    cluster_line,
    copies_per_gib,
    diskless,
    in_buckets,
    kafka,
    objects_per_gib,
    on_disks,
    per_gib,
    read_prices,
    requests_line,
)
from bench.s3_server import S3Endpoint
from bench.table import Cells
from bench.uploading import fresh_server
from stratalog import Cluster, Report

REPLICAS = 3
FEW, MORE = 1, 3
"""Numbers of partitions: the difference between runs over these numbers is the cost of a partition."""
SIZES_MIB = (1, 8, 64)
MERGED = 16
"""The number of appends in a merge, the default of segment.merge.min.files."""
RECORD_BYTES = 64 * 1024
_ALWAYS_DUE = {"log.retention.check.interval.ms": "1", "remote.log.manager.task.interval.ms": "1"}
AS_PUTS = {
    *("PutObject", "CopyObject", "ListObjectsV2", "ListMultipartUploads", "ListParts"),
    *("CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload"),
}
AS_GETS = {"GetObject", "HeadObject"}
FREE = {"DeleteObject", "DeleteObjects", "AbortMultipartUpload"}


def costs(bench: Bench) -> Sequence[Cells]:
    """Lines of requests, of appends, and of clusters."""
    prices = read_prices()
    measured = _measured(bench)
    operations = [
        *((f"append of {mib} MiB, per partition", each.partition) for mib, each in measured.appends.items()),
        ("append, fixed cost per run", measured.appends[SIZES_MIB[0]].run),
        ("merge, per merged append", measured.merged),
        ("replicate and tier, per partition with new records", measured.replicated.partition),
        ("replicate and tier, fixed cost per run", measured.replicated.run),
        ("merge and retain, per partition with new records", measured.checked.partition),
        ("merge and retain, fixed cost per run", measured.checked.run),
        ("tier, per segment", measured.segment),
    ]
    lines = [requests_line(what, requests, prices.bucket) for what, requests in operations]
    for mib, operation in measured.appends.items():
        day = operation.partition.dollars(prices.bucket) * DAY_S / prices.use.append_s
        topic_day = operation.of(TEN).dollars(prices.bucket) * DAY_S / prices.use.append_s
        lines.append(append_line(f"{mib:g}", per_gib(prices, operation, mib, MANY), day, topic_day))
    for what, gib in (
        ("Kafka's copies between zones", copies_per_gib(prices)),
        ("diskless topics, objects of full size", objects_per_gib(prices)),
    ):
        lines.append(break_even_line(what, gib, break_even_mib(prices, measured, gib), max(SIZES_MIB)))
    return [*lines, *_clusters(prices, measured)]


def _clusters(prices: Prices, measured: Measured) -> Iterator[Cells]:
    for shape in prices.shape:
        tb_day = shape.mib_s * 1024**2 * DAY_S / 1e12
        shape_text = f"{shape.partitions:,} partitions, {shape.mib_s:g} MiB/s"
        for system, found in (
            ("stratalog, brokers in buckets", in_buckets(prices, shape, measured)),
            ("stratalog, brokers on disks", on_disks(prices, shape, measured)),
            ("Kafka with tiering", kafka(prices, shape)),
            ("diskless topics", diskless(prices, shape)),
        ):
            yield cluster_line(f"{shape_text}: {system}", found, tb_day)


# ------------------------------------------------------------------------------ measuring


def _measured(bench: Bench) -> Measured:
    appends: dict[float, Operation] = {}
    with fresh_server(bench.folder / "s3") as endpoint:
        for mib in SIZES_MIB:
            bench.say(f"costs of appends of {mib} MiB")
            appends[mib] = _operation(bench, endpoint, f"append{mib}", _filled, _appending(mib))
        bench.say("costs of rounds of maintain, of merging and of tiering")
        replicated = _operation(bench, endpoint, "replicated", _appended, _round_of("replicate", "tier"))
        checked = _operation(bench, endpoint, "checked", _appended, _round_of("merge", "retain"))
        merged = _operation(bench, endpoint, "merge", _small_appends, lambda cluster, _: _done(cluster.merge()))
        segment = _operation(bench, endpoint, "tier", _sealed, lambda cluster, _: _done(cluster.tier()))
    return Measured(appends, merged.partition.times(1 / MERGED), replicated, checked, segment.partition)


def _operation(
    bench: Bench,
    endpoint: S3Endpoint,
    name: str,
    prepare: Callable[[Cluster, int], None],
    run: Callable[[Cluster, int], None],
) -> Operation:
    """The requests of a run, and of each of its partitions, by a driver that has run the operation once before."""
    found: dict[int, Requests] = {}
    for partitions in (FEW, MORE):
        file = s3_cluster_file(bench.folder / f"{name}-{partitions}", endpoint, f"{name}-{partitions}")
        Cluster.format(file)
        _complete_at_once(file)
        cluster = Cluster.open(file, keeps_short=False)
        prepare(cluster, partitions)
        with counted() as calls:
            run(cluster, partitions)
        found[partitions] = _billed(calls)
    step = MORE - FEW
    partition = Requests(
        (found[MORE].puts - found[FEW].puts) / step,
        (found[MORE].gets - found[FEW].gets) / step,
    )
    return Operation(found[FEW] + partition.times(-FEW), partition)


def s3_cluster_file(folder: Path, endpoint: S3Endpoint, name: str) -> Path:
    """The cluster file of a cluster whose brokers and remote tier are prefixes of the server's bucket."""
    folder.mkdir(parents=True)
    root = f"s3://{endpoint.bucket}/{name}"
    return cluster_file(folder, name, REPLICAS, f"{root}/remote", {"endpoint_url": endpoint.url}, root)


def _complete_at_once(file: Path) -> None:
    """Create large objects with the requests that AWS accepts. The emulator accepts them only without concurrent
    requests, which ``format`` detects; so the option is set afterwards."""
    with file.open("a", encoding="utf-8") as options:
        options.write("exclusive_multipart = true\n")


def _filled(cluster: Cluster, partitions: int) -> None:
    _create(cluster, partitions, {})
    _appending(1)(cluster, partitions)


def _appended(cluster: Cluster, partitions: int) -> None:
    """Append to each partition after a round of maintain in which everything was due."""
    cluster.topics.alter_configs(None, _ALWAYS_DUE)
    _create(cluster, partitions, {"remote.storage.enable": "true"})
    _appending(1)(cluster, partitions)
    for _ in range(2):
        _done(cluster.maintain())
    _appending(1)(cluster, partitions)


def _sealed(cluster: Cluster, partitions: int) -> None:
    """Leave one segment of each partition to be tiered."""
    _create(cluster, partitions, {"remote.storage.enable": "true", "segment.bytes": "1"})
    _appending(64)(cluster, partitions)


def _create(cluster: Cluster, partitions: int, configs: dict[str, str]) -> None:
    # So that records of 1970 do not expire.
    configs = {"compression.type": "uncompressed", "retention.ms": "-1"} | configs
    cluster.topics.create(TOPIC, partitions=partitions, replication_factor=REPLICAS, configs=configs)


def _appending(mib: int) -> Callable[[Cluster, int], None]:
    def append(cluster: Cluster, partitions: int) -> None:
        records = mib * 1024**2 // RECORD_BYTES
        data = np.random.default_rng(mib).bytes(RECORD_BYTES)
        batch = record_batch(pa.array([data] * records, pa.binary()))
        _done(cluster.append_batches(TOPIC, {partition: [batch] for partition in range(partitions)}))

    return append


def _small_appends(cluster: Cluster, partitions: int) -> None:
    """Make the minimum number of appends for a merge."""
    _create(cluster, partitions, {})
    for _ in range(MERGED):
        _appending(1)(cluster, partitions)


def _round_of(*steps: str) -> Callable[[Cluster, int], None]:
    return lambda cluster, _: _done(cluster.maintain(only=steps, due=True))


def _done(report: Report) -> None:
    report.raise_for_failures()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """The calls that S3 clients of this process make during the block, by name."""
    calls: Counter[str] = Counter()
    plain = botocore.client.BaseClient._make_api_call

    def telling(self: Any, operation_name: str, parameters: Any) -> Any:
        calls[operation_name] += 1
        return plain(self, operation_name, parameters)

    botocore.client.BaseClient._make_api_call = telling
    try:
        yield calls
    finally:
        botocore.client.BaseClient._make_api_call = plain


def _billed(calls: Counter[str]) -> Requests:
    """Raises: AssertionError for a call without a known price."""
    unknown = calls.keys() - AS_PUTS - AS_GETS - FREE
    if unknown:
        raise AssertionError(f"calls without a price: {', '.join(sorted(unknown))}")
    return Requests(
        sum(number for name, number in calls.items() if name in AS_PUTS),
        sum(number for name, number in calls.items() if name in AS_GETS),
    )
