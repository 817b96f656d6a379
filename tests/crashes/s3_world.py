"""The cluster of the unattended run, three brokers and the remote tier in a bucket; and its required final
state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.s3_server import S3Endpoint
from stratalog import Cluster
from stratalog.engine.driver.report import Value
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import FoundOffset
from stratalog.partitions.paths import METADATA_TOPIC, base_name, folder_of, parse_replica_path
from stratalog.partitions.store import Store, StoreOptions, open_store
from tests.crashes.appender import EXPIRING, KEPT, LEDGER, PARTITIONS, TIERED, records_of

BROKERS = (1, 2, 3)
REMOTE = "remote"
MOST_SMALL_FILES = 40
"""The maximum number of small files in the folder of a replica, besides its merged segments: appends, registers,
epochs."""
SEGMENT_BYTES = 256 * 1024
_REMOTE = {"remote.storage.enable": "true", "retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Files:
    """The counts of files in one look at the bucket."""

    average: float
    """The average number in the folder of a replica of the appenders' topics."""
    most: int
    metadata: int
    """The number in the largest folder of the metadata log."""
    of_broker: Mapping[int, int]


class S3World:
    """The cluster and its expected content."""

    def __init__(self, folder: Path, endpoint: S3Endpoint, segment_ms: int) -> None:
        """Format the cluster. All time configs follow ``segment_ms``, the time after which a segment is sealed."""
        self._root = f"s3://{endpoint.bucket}/unattended"
        self._options = StoreOptions(endpoint.url, endpoint.region)
        self.file = folder / "cluster.toml"
        lines = [
            "[cluster]",
            'id = "unattended"',
            f'remote = "{self._root}/{REMOTE}"',
            f"voters = {list(BROKERS)}",
        ]
        for broker in BROKERS:
            log_dir = f"{self._root}/broker-{broker}"
            lines += ["[[brokers]]", f"id = {broker}", f'rack = "r{broker}"', f'log_dir = "{log_dir}"']
        lines += ["[s3]", f'endpoint_url = "{endpoint.url}"', f'region = "{endpoint.region}"']
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._cluster = Cluster.format(self.file)
        self._cluster.topics.alter_configs(None, _cluster_configs(segment_ms))
        local = {**_REMOTE, "local.retention.ms": str(segment_ms)}
        configs = {
            KEPT: {"retention.ms": "-1"},
            TIERED: local,
            LEDGER: local,
            EXPIRING: {"retention.ms": str(3 * segment_ms)},
        }
        for topic, partitions in PARTITIONS.items():
            self._cluster.topics.create(
                topic, partitions=partitions, replication_factor=len(BROKERS), configs=configs[topic]
            )

    def files(self) -> Files:
        folders: Counter[tuple[int, str]] = Counter()
        for broker in BROKERS:
            for stored in self._broker(broker).walk(""):
                folders[broker, folder_of(stored.name)] += 1
        logs = [count for (_, path), count in folders.items() if _topic_of(path) in PARTITIONS]
        metadata = [count for (_, path), count in folders.items() if path.endswith(METADATA_TOPIC)]
        of_broker = Counter[int]()
        for (broker, _), count in folders.items():
            of_broker[broker] += count
        return Files(fmean(logs) if logs else 0.0, max(logs, default=0), max(metadata, default=0), of_broker)

    def lose(self, broker: int) -> int:
        """Delete every object of a broker; returns the number."""
        store, lost = self._broker(broker), 0
        while found := [stored.name for stored in store.walk("")]:
            store.delete(found)
            lost += len(found)
        return lost

    def open_work(self) -> list[str]:
        """The remaining work after the appends have ended and ``maintain`` has run for a while."""
        image, found = self._cluster.image, []
        found += [f"broker {broker.broker_id} is fenced" for broker in image.brokers.values() if broker.fenced]
        described = self._cluster.describe()
        found += [*map(str, described.failures)]
        leading = {(row["topic"], row["partition"]): row for row in described.rows if row["role"] == "leader"}
        for row in described.rows:
            found += _open_work_of(row, leading)
        for topic in image.topics.values():
            for view in image.views(topic.name):
                if set(view.isr) != set(view.replicas):
                    found.append(f"{view}: ISR {view.isr} of {view.replicas}")
                elif view.leader != view.replicas[0]:
                    found.append(f"{view}: broker {view.leader} leads, and not {view.replicas[0]}")
        for (broker, path), names in self._small_files().items():
            if len(names) > MOST_SMALL_FILES:
                found.append(f"broker {broker}, {path}: {len(names)} small files, {sorted(names)[:3]} ...")
        states = [row for row in self._cluster.transactions.list().rows if row["state"] == "Ongoing"]
        found += [f"transaction {row['transactional_id']} is open" for row in states]
        return found

    def check(self, seed: int, written: Mapping[str, int]) -> dict[str, int]:
        """Check the records by topic: each once and in order, for all sequences that each appender has
        ``written``; and every byte of every copy. Raises: AssertionError; OperationFailedError of ``verify``.
        """
        cluster = Cluster.open(self.file)
        cluster.verify(deep=True).raise_for_failures()
        hanging = cluster.transactions.find_hanging().raise_for_failures().rows
        assert not hanging, hanging
        lagging = [row for row in cluster.quorum.describe().raise_for_failures().rows if row["lag"]]
        assert not lagging, lagging
        wanted: dict[tuple[str, int], dict[str, list[str]]] = {}
        for name, sequences in written.items():
            for sequence in range(sequences):
                for topic, of_partitions in records_of(seed, name, sequence).items():
                    for partition, values in of_partitions.items():
                        wanted.setdefault((topic, partition), {}).setdefault(name, []).extend(values)
        counts: Counter[str] = Counter()
        for topic, partitions in PARTITIONS.items():
            starts = cluster.offsets(topic, "earliest")
            for partition in range(partitions):
                start = starts[partition]
                assert isinstance(start, FoundOffset), start
                values, end = _read(cluster, topic, partition, start.offset)
                of_names = wanted.get((topic, partition), {})
                expired = _compare(f"{topic}-{partition}", values, of_names)
                if topic in (KEPT, EXPIRING):  # no markers
                    assert end == sum(map(len, of_names.values())), f"{topic}-{partition}: ends at {end:,}"
                    assert expired == start.offset, f"{topic}-{partition}: begins at {start.offset:,}"
                assert not expired or topic == EXPIRING, f"{topic}-{partition}: {expired:,} records are gone"
                counts[topic] += len(values)
        cluster.close()
        return dict(counts)

    def _small_files(self) -> dict[tuple[int, str], list[str]]:
        """The number of files except merged segments, keyed by broker and folder."""
        found: dict[tuple[int, str], list[str]] = {}
        for broker in BROKERS:
            for stored in self._broker(broker).walk(""):
                path, name = folder_of(stored.name), base_name(stored.name)
                if _topic_of(path) in {*PARTITIONS, *INTERNAL_TOPICS} and "-" not in name:
                    found.setdefault((broker, path), []).append(name)
        return found

    def _broker(self, broker: int) -> Store:
        return open_store(f"{self._root}/broker-{broker}", self._options, SystemClock())


def _cluster_configs(segment_ms: int) -> dict[str, str]:
    few = {f"{topic}.num.partitions": "2" for topic in ("offsets.topic", "transaction.state.log")}
    return few | {
        "log.retention.check.interval.ms": str(segment_ms // 6),
        "leader.imbalance.check.interval.seconds": str(max(1, segment_ms // 3000)),
        "remote.log.manager.task.interval.ms": str(segment_ms // 6),
        "vacuum.interval.ms": str(2 * segment_ms),
        "scrub.interval.ms": str(5 * segment_ms),
        "scrub.max.bytes": str(64 * 1024 * 1024),
        "broker.session.timeout.ms": "3000",
        "replica.lag.time.max.ms": "10000",
        "metadata.log.max.snapshot.interval.ms": str(2 * segment_ms),
        "file.delete.delay.ms": str(segment_ms // 10),
        "segment.ms": str(segment_ms),
        "segment.bytes": str(SEGMENT_BYTES),
        "min.insync.replicas": "2",
    }


def _topic_of(path: str) -> str | None:
    """The topic of a replica's folder."""
    parsed = parse_replica_path(path)
    return None if parsed is None else parsed[1]


def _open_work_of(
    row: Mapping[str, Value], leading: Mapping[tuple[Value, Value], Mapping[str, Value]]
) -> list[str]:
    leader = leading.get((row["topic"], row["partition"]))
    where = f"{row['topic']}-{row['partition']} on broker {row['broker']}"
    if leader is None:
        return [f"{where}: nobody leads"]
    found = [
        f"{where}: {what} {row[what]}, and {leader[what]} of the leader"
        for what in ("high_watermark", "log_end")
        if row[what] != leader[what]
    ]
    if row["topic"] in (TIERED, LEDGER):
        if row["copy_lag_records"]:
            found.append(f"{where}: {row['copy_lag_records']} records are not tiered")
        if not row["local_start"]:
            found.append(f"{where}: nothing has left the broker")
    if row["topic"] == EXPIRING and not row["log_start"]:
        found.append(f"{where}: nothing has expired")
    return found


def _read(cluster: Cluster, topic: str, partition: int, start: int) -> tuple[list[str], int]:
    values: list[str] = []
    while True:
        fetched = cluster.fetch(topic, partition, start, isolation=Isolation.READ_COMMITTED)
        values += [value.decode() for value in fetched.records.column("value").to_pylist()]
        if fetched.next_offset == start:
            return values, start
        start = fetched.next_offset


def _compare(where: str, values: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> int:
    """Check that each appender's records are the last ones of those that it wrote, in order; returns the number of
    earlier ones."""
    found: dict[str, list[str]] = {name: [] for name in wanted}
    for value in values:
        found.setdefault(value.split(" ", 1)[0], []).append(value)
    gone = 0
    for name, own in found.items():
        expected = wanted.get(name, [])
        first = len(expected) - len(own)
        assert first >= 0, f"{where}: {len(own):,} records of {name}, and {len(expected):,} were written"
        assert own == list(expected[first:]), f"{where}: the records of {name} are not those that were written"
        gone += first
    return gone
