"""The golden cluster: a script that makes a file of every format, with the same bytes each time.

    plain       keys, headers and nulls of a named producer; small appends and a merged segment; two leader epochs
    trips       declared types; tiered, its oldest segments in the remote tier only; registers of local starts
    cities      cleanup.policy=snapshot: a checkpoint, and records after it
    ledger      transactions: one committed, with offsets of a group; one aborted; one open
and the engine's own topics, a checkpoint of the metadata and batches after it, a metadata cache, a restore point,
a schedule. A second cluster of one broker has signed metadata.

Brokers are in memory, because the identity of a root on a disk contains the time of its creation.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from stratalog.engine.cluster.parts import with_parts
from tests.clocks import open_by_clock
from tests.golden.harness import Clock, Cluster, ManualClock, MemoryStore, Store, StoreOptions

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SECRET = "Z29sZGVuIGdvbGRlbiBnb2xkZW4gZ29sZGVuIGdvbGQ="
PLAIN, SIGNED = "golden", "signed"
BROKERS = {PLAIN: (1, 2, 3), SIGNED: (1,)}
ROOTS = {PLAIN: "b{}", SIGNED: "s{}"}
"""The folder of each broker."""

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TRIP = pa.struct([("city", pa.string()), ("distance", pa.float64()), ("seats", pa.int64())])
TRIP_TYPE = StructType(
    [StructField("city", StringType()), StructField("distance", DoubleType()), StructField("seats", LongType())]
)
Row = tuple[Any, Any, Sequence[Mapping[str, Any]] | None]
"""Key, value, headers."""


class World:
    """The roots of one cluster, its clock, and ids in the order of the requests."""

    def __init__(self, folder: Path, cluster_id: str, log_dir: str, now_ms: int) -> None:
        """``log_dir``: the address of a root, with ``{}`` for the number of its broker."""
        self.cluster_id = cluster_id
        self.remote = folder / cluster_id / "remote"
        self.file = folder / cluster_id / "cluster.toml"
        self.clock = ManualClock(now_ms)
        self._numbers = itertools.count(now_ms)
        self._memory: dict[str, MemoryStore] = {}
        self.remote.mkdir(parents=True, exist_ok=True)
        brokers = BROKERS[cluster_id]
        text = f'[cluster]\nid = "{cluster_id}"\nremote = "remote"\nvoters = {list(brokers)}\ncache = "cache"\n'
        for broker in brokers:
            rack = chr(96 + broker)
            text += f'[[brokers]]\nid = {broker}\nrack = "{rack}"\nlog_dir = "{log_dir.format(broker)}"\n'
        self.file.write_text(text)

    def new_id(self) -> str:
        return f"{next(self._numbers):032x}"

    def open_root(self, uri: str, options: StoreOptions, clock: Clock) -> Store:
        if uri.startswith("memory://"):
            return self._memory.setdefault(uri, MemoryStore(uri, clock))
        return open_by_clock(uri, options, clock)

    def _key(self) -> str | None:
        return SECRET if self.cluster_id == SIGNED else None

    def format(self) -> Cluster:
        return with_parts(Cluster, clock=self.clock, new_id=self.new_id, opener=self.open_root).format(
            self.file, cluster_key=self._key, keeps_short=False
        )

    def open(self) -> Cluster:
        return with_parts(Cluster, clock=self.clock, new_id=self.new_id, opener=self.open_root).open(
            self.file, cluster_key=self._key, keeps_short=False
        )

    def restore(self, heir: Path) -> Cluster:
        """Restore the cluster ``heir``, of one broker in memory, from the remote tier alone."""
        heir.write_text(
            f'[cluster]\nid = "heir"\nremote = "{self.remote}"\nvoters = [1]\n'
            '[[brokers]]\nid = 1\nlog_dir = "memory://heir"\n'
        )
        door = with_parts(Cluster, clock=self.clock, new_id=self.new_id, opener=self.open_root)
        door.restore(heir, self.cluster_id).raise_for_failures()
        return door.open(heir, keeps_short=False)

    def files(self) -> dict[str, bytes]:
        """Every file of every root in memory, of the remote tier and of the cache, by its path."""
        found = {
            f"{self.cluster_id}/{uri.removeprefix('memory://')}/{stored.name}": store.read(stored.name)
            for uri, store in self._memory.items()
            for stored in store.list("")
        }
        folder = self.file.parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path != self.file:
                found[f"{self.cluster_id}/{path.relative_to(folder)}"] = path.read_bytes()
        return found


def batch(
    rows: Sequence[Row], at_ms: int, key: pa.DataType | None = None, value: pa.DataType | None = None
) -> Any:
    """Records a millisecond apart."""
    keys, values, headers = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([(at_ms + n) * 1000 for n in range(len(rows))], pa.timestamp("us", tz="UTC")),
            "key": pa.array(keys, key or pa.binary()),
            "value": pa.array(values, value or pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )


def trips(*cities: str) -> list[Row]:
    """One row for each."""
    return [
        (city.lower(), {"city": city, "distance": len(city) / 2, "seats": n}, None)
        for n, city in enumerate(cities)
    ]


def build(folder: Path) -> World:
    """The golden cluster."""
    world = World(folder, PLAIN, f"memory://{ROOTS[PLAIN]}", START_MS)
    cluster, clock = world.format(), world.clock
    cluster.topics.alter_configs(
        None,
        {
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "default.replication.factor": "3",
        },
    )
    clock.advance_ms(1000)
    _plain(cluster, clock)
    _cities(cluster, clock)
    _ledger(cluster, clock)
    _trips(cluster, clock)
    cluster.snapshot("__cluster_metadata", by_hand=True).raise_for_failures()
    cluster.topics.alter_configs("plain", {"segment.merge.min.files": "3"})
    world.open()  # this driver stores the metadata in its cache
    return world


def build_signed(folder: Path) -> World:
    """The signed cluster."""
    world = World(folder, SIGNED, f"memory://{ROOTS[SIGNED]}", START_MS)
    cluster = world.format()
    cluster.topics.create(
        "t", configs={"remote.storage.enable": "true", "segment.bytes": "1", "retention.ms": "-1"}
    )
    for value in (b"a", b"b"):
        cluster.append_batches("t", {0: [batch([(None, value, None)], START_MS)]}).raise_for_failures()
    cluster.tier().raise_for_failures()
    cluster.quorum.snapshot(by_hand=True).raise_for_failures()
    cluster.topics.alter_configs("t", {"segment.merge.min.files": "3"})
    return world


def _plain(cluster: Cluster, clock: ManualClock) -> None:
    cluster.topics.create("plain", configs={"segment.merge.min.files": "2", "retention.ms": "-1"})
    appends: list[list[Row]] = [
        [(b"k1", b"one", [{"key": "h", "value": b"\x00\xff"}]), (None, None, [])],
        [(b"k2", b"two" * 20, None)],
        [(b"", b"", [{"key": "", "value": None}]), (b"k1", "größe".encode(), None)],
    ]
    for sequence, rows in enumerate(appends):
        cluster.append_batches(
            "plain", {0: [batch(rows, clock.now_ms())]}, producer="loader", sequence=sequence
        ).raise_for_failures()
        clock.advance_ms(1000)
    cluster.merge("plain").raise_for_failures()
    cluster.replicate("plain").raise_for_failures()
    leader = next(int(str(row["broker"])) for row in cluster.describe("plain").rows if row["role"] == "leader")
    cluster.elect("plain", [0], leader=leader % 3 + 1).raise_for_failures()
    cluster.append_batches(
        "plain", {0: [batch([(b"k3", b"under another leader", None)], clock.now_ms())]}
    ).raise_for_failures()


def _cities(cluster: Cluster, clock: ManualClock) -> None:
    cluster.topics.create("cities", configs={"cleanup.policy": "snapshot"})
    for rows in (
        [(b"Oslo", b"1", None), (b"Bergen", b"2", None)],
        [(b"Oslo", b"3", None), (b"Bergen", None, None)],
    ):
        cluster.append_batches("cities", {0: [batch(rows, clock.now_ms())]}).raise_for_failures()
        clock.advance_ms(1000)
    cluster.snapshot("cities", by_hand=True).raise_for_failures()
    cluster.append_batches("cities", {0: [batch([(b"Moss", b"4", None)], clock.now_ms())]}).raise_for_failures()


def _ledger(cluster: Cluster, clock: ManualClock) -> None:
    cluster.topics.create("ledger", configs={"retention.ms": "-1"})
    for name, value in (("t-1", b"kept"), ("t-2", b"dropped"), ("t-3", b"open")):
        transaction = cluster.transactions.begin(name, timeout_ms=900_000)
        transaction.append_batches("ledger", {0: [batch([(b"k", value, None)], clock.now_ms())]})
        clock.advance_ms(1000)
        if name == "t-1":
            transaction.commit_offsets("dashboard", {("plain", 0): 2})
            transaction.commit()
        elif name == "t-2":
            transaction.abort()
    cluster.groups.commit("dashboard", {("plain", 0): 3, ("ledger", 0): 1})


def _trips(cluster: Cluster, clock: ManualClock) -> None:
    cluster.topics.create(
        "trips",
        key=StringType(),
        value=TRIP_TYPE,
        configs={
            "remote.storage.enable": "true",
            "segment.bytes": "1",
            "retention.ms": "-1",
            "local.retention.bytes": "0",
            "file.delete.delay.ms": "0",
        },
    )
    for cities in (("Oslo", "Bergen"), ("Moss",), ("Narvik", "Molde")):
        cluster.append_batches(
            "trips", {0: [batch(trips(*cities), clock.now_ms(), pa.string(), TRIP)]}
        ).raise_for_failures()
        clock.advance_ms(1000)
    for job in (cluster.tier, cluster.retain, cluster.retain):
        job("trips").raise_for_failures()
        clock.advance_ms(1000)
    cluster.append_batches(
        "trips", {0: [batch(trips("Hamar"), clock.now_ms(), pa.string(), TRIP)]}
    ).raise_for_failures()


# ------------------------------------------------------------------------------------- packed, and opened


def packed(files: Mapping[str, bytes]) -> bytes:
    """The files as a .tar.xz with the same bytes for the same files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:xz") as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), START_MS // 1000
            archive.addfile(entry, io.BytesIO(data))
    return target.getvalue()


def unpacked(archive: Path, folder: Path, cluster_id: str) -> World:
    """A cluster of the archive on folders, an hour after it was made. Its roots are not registered in their new
    places."""
    with tarfile.open(archive) as packed_files:
        packed_files.extractall(folder, filter="data")
    return World(folder, cluster_id, ROOTS[cluster_id], START_MS + HOUR_MS)


def holdings(cluster: Cluster) -> str:
    """The data of readers: every record of every user topic by isolation level, offsets, groups, transactions."""
    lines: list[str] = []
    for topic in sorted(str(row["topic"]) for row in cluster.topics.list().rows):
        if topic.startswith("__"):
            continue
        lines.append(f"{topic}: {', '.join(f'{at} {_offset(cluster, topic, at)}' for at in POSITIONS)}")
        for isolation in ("read_uncommitted", "read_committed"):
            lines += [f"  {isolation}", *(f"    {row}" for row in records(cluster, topic, isolation))]
    for row in cluster.groups.list().rows:
        group = str(row["group"])
        kept = {f"{topic}-{n}": at.offset for (topic, n), at in sorted(cluster.groups.committed(group).items())}
        lines.append(f"group {group}: {kept}")
    for row in cluster.transactions.list().rows:
        lines.append(f"transactional id {row['transactional_id']}: {row['state']}")
    return "\n".join([*lines, ""])


POSITIONS = ("earliest", "earliest-local", "earliest-pending-upload", "latest")


def _offset(cluster: Cluster, topic: str, at: str) -> int | str:
    found = cluster.offsets(topic, at)[0]
    return getattr(found, "offset", type(found).__name__)


def records(cluster: Cluster, topic: str, isolation: str = "read_uncommitted") -> Iterator[str]:
    """The records of partition 0 from its log start, one per line."""
    position = _offset(cluster, topic, "earliest")
    assert isinstance(position, int)
    while True:
        found = cluster.fetch(topic, 0, position, isolation=isolation)
        for row in found.records.select(["offset", "timestamp", "key", "value", "headers"]).to_pylist():
            at = row.pop("timestamp").isoformat()
            yield json.dumps({"at": at, **row}, default=repr, ensure_ascii=False)
        if found.next_offset == position:
            return
        position = found.next_offset
