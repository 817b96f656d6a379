"""A whole cluster without Spark, one directory per test: brokers in memory or on folders, a remote tier on a
folder, and any number of drivers."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.config.key_source import KeySource, key_of_environment
from stratalog.engine.driver.report import OperationFailedError, Report
from stratalog.engine.driver.tasks import Progress, Silent
from stratalog.engine.metadata.commands import FenceBroker, UnfenceBroker
from stratalog.engine.reading.bounds import Bound
from stratalog.engine.reading.plan import FileRange
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.replica_selector import KEY, MakeSelector
from stratalog.partitions.clock import Clock, ManualClock, SystemClock
from stratalog.partitions.errors import BrokerUnreachableError
from stratalog.partitions.listing import DataFile, ReplicaLog
from stratalog.partitions.paths import DataName, base_name, parse_name
from stratalog.partitions.replica import Replica
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject
from tests.clocks import FolderByClock
from tests.ports import ports_of
from tests.unit.harness import batch

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",  # every append is a separate segment, sealed immediately
    "retention.ms": "-1",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
}
"""Configs that let the records of a topic leave the brokers as early as possible."""

Values = Mapping[int, Iterable[str]]
"""Values to append, keyed by partition."""


class Dying(Silent):
    """The driver dies after everything is uploaded and before anything is committed."""

    def __init__(self) -> None:
        self.left = 0

    def start(self, operation: str, items: int, unit: str) -> None:
        self.left = items

    def advance(self, size_bytes: int = 0) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class LiveCluster:
    """Brokers 1..n, in racks a, b, ..., of which ``voters`` vote. ``on_disk`` puts the brokers on folders too.

    The clock starts at the current time, because files on disks have the machine's time.
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        *,
        on_disk: bool = False,
        voters: Sequence[int] = (1,),
        through: Callable[[str, Store], Store] = lambda uri, store: store,
        cluster_key: KeySource = key_of_environment,
    ) -> None:
        self.folder = folder
        self.clock = ManualClock(SystemClock().now_ms())
        self.through = through
        self.cluster_key = cluster_key
        self.selectors: dict[str, MakeSelector] = {}
        """The selectors of the drivers (``replica.selector.class``)."""
        self._numbers = itertools.count(1)
        self._memory: dict[str, MemoryStore] = {}
        self._lock = threading.Lock()
        self.file = folder / "cluster.toml"
        self.remote = folder / "remote"
        self.remote.mkdir()
        lines = [f'[cluster]\nid = "c"\nremote = "remote"\nvoters = {list(voters)}\n']
        for broker in range(1, brokers + 1):
            address = f"b{broker}" if on_disk else f"memory://b{broker}"
            lines.append(f'[[brokers]]\nid = {broker}\nrack = "{chr(96 + broker)}"\nlog_dir = "{address}"\n')
            if on_disk:
                self.root(broker).mkdir(exist_ok=True)  # a file system may be mounted there
        self.file.write_text("\n".join(lines))
        self.cluster = with_parts(Cluster, clock=self.clock, new_id=self.new_id, opener=self.open_root).format(
            self.file, cluster_key=cluster_key, keeps_short=False
        )

    def new_id(self) -> str:
        """Ids in the order of the requests."""
        return f"{next(self._numbers):032x}"

    def open_root(self, uri: str, options: StoreOptions, clock: Clock) -> Store:
        """Opens only the stores of this cluster, wrapped by ``through``."""
        scheme, _, rest = uri.partition("://")
        with self._lock:
            if scheme == "memory":
                store: Store = self._memory.setdefault(rest, MemoryStore(uri, self.clock))
            else:
                store = FolderByClock(rest, clock, time=self.clock)
            return self.through(uri, store)

    def driver(
        self, progress: Progress | None = None, *, keeps_short: bool = False, clock: Clock | None = None
    ) -> Cluster:
        """Another driver of the same cluster. Only a driver that ``keeps_short`` merges in the background. The
        storage uses the clock of the cluster, whatever the driver's clock is."""
        return with_parts(
            Cluster, clock=self.clock if clock is None else clock, new_id=self.new_id, opener=self.open_root
        ).open(
            self.file,
            progress=progress,
            selectors=self.selectors,
            cluster_key=self.cluster_key,
            keeps_short=keeps_short,
        )

    def select_by(self, **selectors: MakeSelector) -> None:
        """Let drivers offer these selectors from now on, and select the first one."""
        self.selectors = selectors
        self.cluster = self.driver()
        self.cluster.topics.alter_configs(None, {KEY: next(iter(selectors))})

    def root(self, broker: int) -> Path:
        """The folder of a broker."""
        return self.folder / f"b{broker}"

    def store(self, broker: int) -> Store:
        """The root of a broker."""
        return self.cluster.stores[broker]

    def wipe(self, broker: int) -> None:
        """Replace the broker's disk by an empty one."""
        store = self.store(broker)
        store.delete([stored.name for stored in store.list("")])

    @contextmanager
    def unreachable(self, broker: int) -> Iterator[None]:
        """Unmount the broker's volume during the block."""
        away = self.folder / f"b{broker}-unmounted"
        self.root(broker).rename(away)
        self.root(broker).mkdir()
        yield
        self.root(broker).rmdir()
        away.rename(self.root(broker))

    # ----------------------------------------------------------------------------- append, read

    def topic(self, name: str = "t", *, partitions: int = 1, copies: int = 3, **configs: str) -> None:
        """Create a topic; ``configs`` have underscores instead of dots."""
        self.cluster.topics.create(
            name,
            partitions=partitions,
            replication_factor=copies,
            configs={"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}},
        )

    def tiered(self, name: str = "t", *, partitions: int = 1, copies: int = 3, **configs: str) -> None:
        """Create a topic with ``TIERED`` and additional ``configs``."""
        given = {key.replace("_", "."): value for key, value in configs.items()}
        self.cluster.topics.create(
            name, partitions=partitions, replication_factor=copies, configs={**TIERED, **given}
        )

    def append(
        self,
        values: Values | Iterable[str],
        topic: str = "t",
        *,
        at_ms: int = 1,
        producer: str | None = None,
        sequence: int | None = None,
        acks: str = "all",
        driver: Cluster | None = None,
    ) -> Report:
        """Append values (to partition 0 by default), one append per partition, with timestamps from ``at_ms`` on,
        a microsecond apart. The default sequence of a producer is 0. Returns the report, even if the append
        failed."""
        given = values if isinstance(values, Mapping) else {0: values}
        if producer is not None and sequence is None:
            sequence = 0
        return (driver or self.cluster).append_batches(
            topic,
            {partition: [batch(some, at_ms * 1000)] for partition, some in given.items()},
            acks=acks,
            producer=producer,
            sequence=sequence,
            check=False,
        )

    def fill(self, values: Iterable[str], topic: str = "t", *, at_ms: int = 1) -> None:
        """Append each value separately to partition 0."""
        for value in values:
            self.append([value], topic, at_ms=at_ms).raise_for_failures()

    def tier_and_drop(self, topic: str | None = None) -> None:
        """Tier, and let the brokers drop what is tiered: one run moves the local start, the next deletes."""
        self.cluster.tier(topic).raise_for_failures()
        for _ in range(2):
            self.cluster.retain(topic).raise_for_failures()

    def read(
        self, topic: str = "t", start: Bound = None, end: Bound = None, partitions: Sequence[int] | None = None
    ) -> dict[int, list[str]]:
        """The values that a reader gets, by partition and in offset order. Offsets must be contiguous."""
        found: dict[int, dict[int, str]] = {}
        for part in self.cluster.plan_read(topic, start, end, partitions):
            of_partition = found.setdefault(part.partition, {})
            for offset, value in self.records(part):
                assert offset not in of_partition, f"offset {offset} was planned twice"
                of_partition[offset] = value
        for offsets in found.values():
            assert sorted(offsets) == list(range(min(offsets), max(offsets) + 1))
        return {
            partition: [of_partition[offset] for offset in sorted(of_partition)]
            for partition, of_partition in sorted(found.items())
        }

    def records(self, part: FileRange) -> Iterator[tuple[int, str]]:
        """Offset and value of the records of a planned range."""
        roots = [*self.cluster.stores.values(), LocalStore(str(self.remote))]
        store = next(store for store in roots if part.uri.startswith(f"{store.uri}/"))
        name = part.uri.removeprefix(f"{store.uri}/")
        parsed = parse_name(base_name(name))
        assert isinstance(parsed, DataName)
        file = DataFile(parsed, StoredObject(name, part.size_bytes, 0, ""))
        if isinstance(store, MemoryStore):
            file = DataFile(parsed, next(s for s in store.list(name.rpartition("/")[0]) if s.name == name))
        for rows in read_batches(store, file, part.start, part.end, ["offset", "value"]):
            values = rows.column("value").to_pylist()
            yield from zip(rows.column("offset").to_pylist(), (v.decode() for v in values), strict=True)

    # -------------------------------------------------------------------------------- replicas

    def replicas(self, topic: str = "t", partition: int = 0) -> PartitionReplicas:
        """A partition in the current metadata."""
        image = self.cluster.image
        return PartitionReplicas(image.view(image.topic(topic).topic_id, partition), self.cluster.stores)

    def replica(self, broker: int, topic: str = "t", partition: int = 0) -> Replica:
        return self.replicas(topic, partition).replica(broker)

    def log(self, broker: int, topic: str = "t", partition: int = 0) -> ReplicaLog:
        """The current log of a replica."""
        return self.replica(broker, topic, partition).log()

    def leader(self, topic: str = "t", partition: int = 0) -> int:
        leader = self.replicas(topic, partition).view.leader
        assert leader is not None
        return leader

    def followers(self, topic: str = "t", partition: int = 0) -> list[int]:
        return self.replicas(topic, partition).followers

    def isr(self, topic: str = "t", partition: int = 0) -> set[int]:
        return set(self.replicas(topic, partition).view.isr)

    def data(self, broker: int, topic: str = "t", partition: int = 0) -> dict[str, bytes]:
        """The files of a replica's log, by name."""
        replica = self.replica(broker, topic, partition)
        return {str(link.name): replica.store.read(link.file.object.name) for link in replica.log().chain}

    def on_brokers(self) -> dict[str, bytes]:
        """Every file of every broker whose root exists; with ``in_remote`` this is all storage."""
        found = dict[str, bytes]()
        for store in self.cluster.stores.values():
            with suppress(BrokerUnreachableError):
                found |= {store.uri_of(stored.name): store.read(stored.name) for stored in store.list("")}
        return found

    def in_remote(self) -> dict[str, bytes]:
        """Every file of the remote tier."""
        return {str(path): path.read_bytes() for path in self.remote.rglob("*") if path.is_file()}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check that the block changes no file of the cluster, except the list of due partitions, which is a
        hint."""
        before = self._all_but_hints()
        yield
        after = self._all_but_hints()
        assert sorted(after) == sorted(before)
        assert after == before

    def _all_but_hints(self) -> dict[str, bytes]:
        files = self.on_brokers() | self.in_remote()
        return {name: data for name, data in files.items() if not name.endswith(".schedule")}


def rows_of(report: Report, *columns: str) -> list[tuple[object, ...]]:
    """The columns of a successful report."""
    report.raise_for_failures()
    return [tuple(row[column] for column in columns) for row in report.rows]


def report_of(operation: Callable[[], Report]) -> Report:
    """The report of an operation, also of one that fails."""
    try:
        return operation()
    except OperationFailedError as error:
        return error.report


def codes(report: Report) -> Counter[str]:
    """The count of each error in a report."""
    return Counter(failure.code for failure in report.failures)


def the_failure(report: Report) -> str:
    """The only failure of a report, as one line."""
    (failure,) = report.failures
    return f"{failure.item}: {failure.code}: {failure.message}"


def offsets_of(appended: Report) -> dict[int, tuple[int, int]]:
    """The offsets of a successful append, by partition."""
    return {
        int(str(p)): (int(str(a)), int(str(b)))
        for p, a, b in rows_of(appended, "partition", "base_offset", "next_offset")
    }


def remote_files(live: LiveCluster) -> list[Path]:
    """The objects of partition 0 in the remote tier."""
    return sorted(live.remote.glob("*/0/*.parquet"))


def fence(live: LiveCluster, *brokers: int) -> None:
    """Fence brokers by hand, so that a probe does not unfence them."""
    for broker in brokers:
        ports_of(live.cluster).metadata.submit(FenceBroker(broker, by_hand=True))


def unfence(live: LiveCluster, *brokers: int) -> None:
    """Unfence brokers with their known roots, without looking at the roots."""
    for broker in brokers:
        epoch = live.cluster.image.broker(broker).broker_epoch
        ports_of(live.cluster).metadata.submit(UnfenceBroker(broker, epoch))


def led_by_each(folder: Path, *, on_disk: bool = False) -> LiveCluster:
    """Brokers 1 (which votes), 2 and 3; topic ``t`` with a partition on all of them, led by 1, 2 and 3."""
    made = LiveCluster(folder, on_disk=on_disk)
    made.topic(partitions=3)
    made.append({0: ["a0"], 1: ["a1"], 2: ["a2"]}).raise_for_failures()
    return made


def live_and_shared(built: Callable[[Path], LiveCluster]) -> tuple[Any, Any]:
    """Two fixtures for the content of a folder: ``live``, and ``shared`` for tests that change nothing."""

    @pytest.fixture
    def live(tmp_path: Path) -> LiveCluster:
        return built(tmp_path)

    @pytest.fixture(scope="module")
    def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
        return built(tmp_path_factory.mktemp("shared"))

    return live, shared
