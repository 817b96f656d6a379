"""The operations of a driver on the cluster; the result of each is compared with the known truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.config.key_source import KeySource
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.metadata.reassignment_plan import parse_plan
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.identity import NewId
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.listing import DataFile
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.paths import DataName, base_name, parse_name
from stratalog.partitions.probing import SerialProber
from stratalog.partitions.runner import SerialRunner
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store.local import LocalStore
from tests.clocks import open_by_clock
from tests.fuzz.oracle import APPENDED, Oracle, WrongError
from tests.fuzz.original import COLUMNS, CUT_OFF, GROUP, REWRITTEN, TIMEOUT_S, Key, read_all, rows_of
from tests.ports import ports_of
from tests.unit.harness import batch
from tests.unit.snapshot_harness import keyed

APPENDABLE = ("plain", "merged", "snaps", "tiered", "on12", "on13", "on23")


@dataclass
class Scene:
    """A driver over a mutated tree."""

    rng: random.Random
    folder: Path
    clock: ManualClock
    oracle: Oracle
    cluster: Cluster

    def key(self) -> Key:
        """A partition: one that the mutation affects, or any."""
        keys = [key for key in sorted(self.oracle.truth.ends) if key[0] not in self.oracle.dropped]
        near = [key for key in keys if key[0] == self.oracle.change.topic]
        return self.rng.choice(near if near and self.rng.random() < 0.7 else keys)

    def topics(self) -> str | None:
        """One topic, or all."""
        return None if self.rng.random() < 0.6 else self.key()[0]

    def isolation(self) -> Isolation:
        return self.rng.choice(list(Isolation))


def open_cluster(
    folder: Path, clock: ManualClock, new_id: NewId, cluster_key: KeySource, *, in_turn: bool = True
) -> Cluster:
    """Open a driver, serial or concurrent."""
    prober = SerialProber() if in_turn else None
    cluster = with_parts(Cluster, clock=clock, new_id=new_id, opener=open_by_clock, prober=prober).open(
        folder / "cluster.toml", cluster_key=cluster_key, keeps_short=False
    )
    if in_turn:
        ports = ports_of(cluster)
        ports.execution.tasks, ports.storage.threads, ports.storage.copies = (
            LocalTasks(1),
            SerialRunner(),
            SerialRunner(),
        )
    return cluster


Operation = Callable[[Scene], object]


def append_to(scene: Scene, topic: str, partition: int = 0, acks: str = "all") -> Report:
    """Append some records; typed topics are left out."""
    rows = batch([APPENDED, APPENDED], 9_000_000)
    if topic == "snaps":
        rows = keyed([("k", APPENDED.decode())], scene.clock.now_ms())
    report = scene.cluster.append_batches(topic, {partition: [rows]}, acks=acks, check=False)
    scene.oracle.check_append(report)
    return report


def append(scene: Scene) -> object:
    topic, partition = scene.key()
    topic = topic if topic in APPENDABLE else "on12"
    return append_to(
        scene,
        topic,
        min(partition, scene.oracle.truth.topics[topic][1] - 1),
        scene.rng.choice(("all", "all", "leader")),
    )


def fetch(scene: Scene) -> object:
    (topic, partition), isolation = scene.key(), scene.isolation()
    end = scene.oracle.truth.ends[topic, partition]
    offset = scene.rng.randrange(end + 1)
    found = scene.cluster.fetch(
        topic,
        partition,
        offset,
        max_bytes=scene.rng.choice((1, 1000, 1 << 20)),
        timeout_s=TIMEOUT_S,
        isolation=isolation,
    )
    scene.oracle.check_rows(topic, partition, isolation, rows_of(found.records))
    if found.next_offset < offset:
        raise WrongError("wrong data", f"{topic}-{partition}: after {offset} comes {found.next_offset}")
    return None


def fetch_all(scene: Scene) -> object:
    (topic, partition), isolation = scene.key(), scene.isolation()
    rows, _ = read_all(scene.cluster, topic, partition, isolation)
    scene.oracle.check_whole(topic, partition, isolation, rows)
    return None


def tail(scene: Scene) -> object:
    topic, isolation = scene.key()[0], scene.isolation()
    start = scene.rng.choice((OffsetSpec.EARLIEST, OffsetSpec.EARLIEST, OffsetSpec.LATEST, 1))
    for table in scene.cluster.tail(topic, start=start, follow=False, isolation=isolation, timeout_s=TIMEOUT_S):
        for partition, row in zip(table.column("partition").to_pylist(), rows_of(table), strict=True):
            scene.oracle.check_rows(topic, partition, isolation, [row])
    return None


def plan_read(scene: Scene) -> object:
    topic = scene.key()[0]
    for part in scene.cluster.plan_read(topic):
        name = parse_name(base_name(part.uri))
        assert isinstance(name, DataName)
        path = part.uri.removeprefix("file://")
        store = LocalStore(str(Path(path).parent))
        stored = next(one for one in store.list("") if one.name == base_name(path))
        for rows in read_batches(store, DataFile(name, stored), part.start, part.end, [*COLUMNS, "control"]):
            kept = rows.filter(rows.column("control").is_null())
            seen = rows_of(pa.Table.from_batches([kept]))
            scene.oracle.check_rows(topic, part.partition, Isolation.READ_UNCOMMITTED, seen)
    return None


def offsets(scene: Scene) -> object:
    spec = scene.rng.choice(
        (OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, "earliest-local", "1970-01-01T00:00:02Z")
    )
    return scene.cluster.offsets(scene.key()[0], spec, scene.isolation())


def vacuum(scene: Scene) -> object:
    return scene.cluster.vacuum(scene.topics(), older_than_ms=scene.rng.choice((0, 86_400_000)), check=False)


def delete_topic(scene: Scene) -> object:
    topic = scene.key()[0]
    scene.oracle.dropped.add(topic)
    return scene.cluster.topics.delete(topic, keep_remote=scene.rng.random() < 0.2, check=False)


def delete_records(scene: Scene) -> object:
    topic, partition = scene.key()
    scene.oracle.dropped.add(topic)
    return scene.cluster.topics.delete_records(topic, {partition: scene.rng.choice((1, -1))}, check=False)


def create_topic(scene: Scene) -> object:
    return scene.cluster.topics.create(f"new{scene.rng.randrange(3)}", partitions=1, replication_factor=2)


def alter_configs(scene: Scene) -> object:
    return scene.cluster.topics.alter_configs(None, {"num.partitions": scene.rng.choice(("1", "3"))})


def reassign(scene: Scene) -> object:
    plan = parse_plan((scene.folder / "plan.json").read_bytes(), "plan.json")
    return scene.cluster.reassign(plan, dry_run=scene.rng.random() < 0.5, check=False)


def elect(scene: Scene) -> object:
    return scene.cluster.elect(scene.topics(), check=False)


def commit_group(scene: Scene) -> object:
    return scene.cluster.groups.commit(GROUP, {("plain", 1): 2}, check=False)


def committed(scene: Scene) -> object:
    found = scene.cluster.groups.committed(GROUP)
    if not scene.oracle.trusts("__consumer_offsets") or scene.oracle.dropped:
        return None
    wanted = {("plain", 0): 3, ("ledger", 0): 2}
    for key, offset in wanted.items():
        if key not in found or found[key].offset != offset:
            raise WrongError("wrong data", f"{GROUP} has committed {found}, and not {wanted}")
    return None


def transact(scene: Scene) -> object:
    with scene.cluster.transactions.begin(f"t-{scene.rng.randrange(1, 5)}") as transaction:
        transaction.append_batches("merged", {0: [batch([APPENDED])]})
    return transaction.report


def recover(scene: Scene) -> object:
    """Recover truncated records, each as it was appended."""
    with TemporaryDirectory() as to:
        report = scene.cluster.recover(scene.topics(), to, dry_run=scene.rng.random() < 0.2, check=False)
        for path in Path(to).glob("forked/**/*.parquet"):
            values = [value.decode() for value in pq.ParquetFile(path).read()["value"].to_pylist()]
            if scene.oracle.trusts("forked") and not set(values) <= {*CUT_OFF, APPENDED.decode()}:
                raise WrongError("wrong data", f"recover has exported {values}")
        return report


def heal_vacuumed(scene: Scene) -> object:
    """Heal after another program has vacuumed the segments of the rewritten table, and the brokers have dropped
    all but the last segment. So the files of the other program are read. A successful heal restores the original
    records.
    """
    oracle = scene.oracle
    trusted = oracle.trusts("rewritten")
    oracle.dropped.add("rewritten")
    last = f"{REWRITTEN - 1:020d}."
    for path in (
        *scene.folder.glob("remote/rewritten-*/0/*.parquet"),
        *scene.folder.glob("b?/*/rewritten-*/*/*.parquet"),
    ):
        kept = path.name.startswith(last) and "remote" not in path.parts
        if not kept and path.is_file() and path.resolve() == path:  # and no link leads there
            path.unlink()
    report = scene.cluster.heal("rewritten", check=False)
    if trusted and report.rows and report.ok and all(row["outcome"] == "repaired" for row in report.rows):
        truth = oracle.truth.records["rewritten", 0, Isolation.READ_UNCOMMITTED.value]
        rows, _ = read_all(scene.cluster, "rewritten", 0, Isolation.READ_UNCOMMITTED)
        for offset, row in truth.items():
            if rows.get(offset) != row:
                raise WrongError("wrong data", f"rewritten-0: {rows.get(offset)}, and not {row}")
    return report


def topics_of(operation: Callable[[Cluster, str | None], object]) -> Operation:
    """An operation on one topic, or on all."""
    return lambda scene: operation(scene.cluster, scene.topics())


OPERATIONS: Mapping[str, Operation] = {
    "describe": lambda scene: scene.cluster.describe(scene.topics()),
    "describe_brokers": lambda scene: scene.cluster.brokers.list(),
    "describe_topics": lambda scene: scene.cluster.topics.list(),
    "describe_quorum": lambda scene: scene.cluster.quorum.describe(),
    "verify": lambda scene: scene.cluster.verify(scene.topics()),
    "verify_deep": lambda scene: scene.cluster.verify(scene.topics(), deep=True),
    "heal": lambda scene: scene.cluster.heal(scene.topics(), check=False),
    "heal_vacuumed": heal_vacuumed,
    "discarded": lambda scene: scene.cluster.discarded(scene.topics()),
    "recover": recover,
    "replicate": topics_of(Cluster.replicate),
    "merge": topics_of(Cluster.merge),
    "tier": topics_of(Cluster.tier),
    "tier_due": lambda scene: scene.cluster.tier(due=True, check=False),
    "retain": topics_of(Cluster.retain),
    "vacuum": vacuum,
    "snapshot": lambda scene: scene.cluster.snapshot(by_hand=scene.rng.random() < 0.5, check=False),
    "snapshots": lambda scene: scene.cluster.snapshots(),
    "snapshot_metadata": lambda scene: scene.cluster.quorum.snapshot(check=False),
    "metrics": lambda scene: scene.cluster.metrics(),
    "drill": lambda scene: scene.cluster.drill(deep=scene.rng.random() < 0.5),
    "append": append,
    "fetch": fetch,
    "fetch_all": fetch_all,
    "tail": tail,
    "plan_read": plan_read,
    "offsets": offsets,
    "elect": elect,
    "reassign": reassign,
    "reassignments": lambda scene: scene.cluster.reassignments(),
    "create_topic": create_topic,
    "alter_configs": alter_configs,
    "register": lambda scene: scene.cluster.brokers.register(check=False),
    "delete_topic": delete_topic,
    "delete_records": delete_records,
    "commit": commit_group,
    "committed": committed,
    "lag": lambda scene: scene.cluster.groups.lag(GROUP),
    "groups": lambda scene: scene.cluster.groups.list(),
    "transact": transact,
    "transactions": lambda scene: scene.cluster.transactions.list(),
    "hanging": lambda scene: scene.cluster.transactions.find_hanging(scene.topics()),
    "finish": lambda scene: scene.cluster.transactions.finish(check=False),
}

MANY = frozenset(
    {
        *("describe", "describe_brokers", "describe_topics", "describe_quorum", "verify", "verify_deep", "heal"),
        *("replicate", "merge", "tier", "tier_due", "retain", "vacuum", "snapshot", "snapshots", "register"),
        *("elect", "metrics", "discarded", "recover"),
    }
)
"""Operations on all topics: damage on one root is a failure in their report, and they continue."""

_LOG = (
    "describe",
    "verify",
    "verify_deep",
    "heal",
    "discarded",
    "recover",
    "replicate",
    "append",
    "fetch",
    "fetch_all",
    "tail",
    "plan_read",
    "offsets",
)
_METADATA = (
    "describe_quorum",
    "verify",
    "snapshot_metadata",
    "create_topic",
    "alter_configs",
    "register",
    "describe",
    "append",
    "metrics",
)
_REMOTE = (
    "tier",
    "retain",
    "vacuum",
    "drill",
    "verify",
    "verify_deep",
    "heal",
    "heal_vacuumed",
    "fetch_all",
    "plan_read",
    "tail",
    "delete_topic",
)
_STATE = ("commit", "committed", "lag", "groups", "transact", "transactions", "hanging", "finish")
_SNAPSHOTS = ("snapshot", "snapshots", "metrics", "retain")
RELEVANT: Mapping[str, tuple[str, ...]] = {
    "segment": (*_LOG, "merge", "tier", "snapshot", "elect"),
    "state": (*_STATE, *_STATE, "verify_deep", "heal", "snapshot"),
    "epoch": (*_LOG, "elect", "reassign", "retain"),
    "local": (*_LOG, "retain", "delete_records"),
    "high": (*_LOG, "retain", "tier"),
    "snapshot": (*_SNAPSHOTS, *_LOG),
    "metadata": _METADATA,
    "claim": _METADATA,
    "broker.json": (*_LOG, *_METADATA, "describe_brokers", "vacuum", "retain"),
    "schedule": ("tier_due", "tier", "describe", "verify", "retain"),
    "description": ("drill", "tier", "vacuum", "delete_topic"),
    "delta": _REMOTE,
    "remote": _REMOTE,
    "foreign": ("heal_vacuumed", "heal_vacuumed", "heal", "tier", "retain", "verify_deep", "fetch_all"),
    "plan": ("reassign", "reassign", "reassignments"),
}
"""Operations, keyed by the first word of the kind of the mutated file."""


def draw_operations(rng: random.Random, kind: str) -> list[str]:
    """Draw a few operations that read such a file, and one of all operations."""
    relevant = RELEVANT.get(kind.split()[0].rstrip(":"), _LOG)
    if "link" in kind or "special" in kind:
        relevant = (*relevant, "vacuum", "delete_topic", "retain", "heal", "replicate")
    drawn = [rng.choice(relevant) for _ in range(4)]
    return [*dict.fromkeys([*drawn, rng.choice(list(OPERATIONS))])]
