"""Measures how fast a Kafka client reads through ``cluster.serve``, compared with a fetch of the same records, in
paired turns.

    python -m bench.serving [RECORDS]

The topic has one partition on a folder, with records of 100 random bytes and a key. One kind of fetch returns
Arrow tables, in pieces of 4 MiB; another kind also makes a Python object per record. The client is librdkafka in a
separate process. Its measured time begins after its first record.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from stratalog import Cluster
from stratalog.partitions.records import HEADERS, TIMESTAMP

RECORDS = 400_000
TURNS = 5
PIECE = 50_000
PIECE_BYTES = 4 * 1024 * 1024


def main() -> None:
    """Print the figures."""
    if sys.argv[1:2] == ["--client"]:
        print(consume(sys.argv[2], int(sys.argv[3])))
        return
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    with tempfile.TemporaryDirectory() as folder:
        cluster = filled(Path(folder), records)
        with cluster.serve("127.0.0.1:0") as endpoint:
            server = "{}:{}".format(*endpoint.address)
            ways: dict[str, Callable[[], float]] = {
                "fetch": lambda: fetch(cluster, records, lambda table: None),
                "fetch, as objects": lambda: fetch(cluster, records, lambda table: table.to_pylist()),
                "client": lambda: client(server, records),
            }
            for way in ways.values():
                way()
            found: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(TURNS):
                for name in list(ways)[:: -1 if turn % 2 else 1]:
                    found[name].append(ways[name]())
    for name, rates in found.items():
        print(f"{name:18} {statistics.median(rates):12,.0f} records/s ({min(rates):,.0f} to {max(rates):,.0f})")
    shares = [one / other for one, other in zip(found["client"], found["fetch, as objects"], strict=True)]
    print(f"client / fetch, as objects: {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")


def filled(folder: Path, records: int) -> Cluster:
    """A cluster of one broker, with that many records in ``t``."""
    (folder / "b1").mkdir()
    file = folder / "cluster.toml"
    file.write_text('[cluster]\nid = "c"\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = "b1"\n')
    cluster = Cluster.format(file)
    cluster.topics.create("t", partitions=1, replication_factor=1)
    rng = random.Random(1)
    for start in range(0, records, PIECE):
        numbers = range(start, min(start + PIECE, records))
        rows = {
            "timestamp": pa.array(numbers, pa.int64()).cast(TIMESTAMP),
            "key": pa.array([b"key-%d" % number for number in numbers]),
            "value": pa.array([rng.randbytes(100) for _ in numbers]),
            "headers": pa.nulls(len(numbers), HEADERS),
        }
        cluster.append_batches("t", {0: [pa.RecordBatch.from_pydict(rows)]}).raise_for_failures()
    return cluster


def fetch(cluster: Cluster, records: int, use: Callable[[pa.Table], object]) -> float:
    """The records per second of a fetch."""
    begun, offset = time.perf_counter(), 0
    while offset < records:
        fetched = cluster.fetch("t", 0, offset, max_bytes=PIECE_BYTES)
        use(fetched.records)
        offset = fetched.next_offset
    return records / (time.perf_counter() - begun)


def client(server: str, records: int) -> float:
    """The records per second of a client in a separate process."""
    command = [sys.executable, "-m", "bench.serving", "--client", server, str(records)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def consume(server: str, records: int) -> float:
    """The records per second, from the second poll on."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": server, "group.id": "g", "max.partition.fetch.bytes": PIECE_BYTES}
        | {"enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    first = 0
    while not first:
        first = len(consumer.consume(1, 1.0))
    begun, seen = time.perf_counter(), first
    while seen < records:
        seen += len(consumer.consume(10_000, 1.0))
    taken_s = time.perf_counter() - begun
    consumer.close()
    return (records - first) / taken_s


if __name__ == "__main__":
    main()
