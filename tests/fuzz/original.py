"""The original cluster: three voters on folders, a remote folder, topics of every kind; and the results of
readers, which are the truth for all comparisons.

    plain                two partitions, keys and headers, of named producers
    on12, on13, on23     one partition each, on these two brokers: the content of one root does not stop the
                         partitions without a replica there
    typed                a declared type
    tiered               everything but the tail is only in the remote tier, whose table has checkpoints
    rewritten            the same, but another program has rewritten the table
    forked               its replicas hold records that an unclean election has cut off
    merged               small appends that were merged
    snaps                cleanup.policy = snapshot
    ledger               transactions: committed, aborted, and open
    and the engine's own: offsets of groups, the state of transactions
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from stratalog import Cluster
from stratalog.engine.admin import topics
from stratalog.engine.config.key_source import KeySource
from stratalog.engine.metadata.reassignment_plan import plan_json
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.records import type_to_json
from tests.fuzz.paths import coverage_of
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.harness import batch
from tests.unit.snapshot_harness import keyed

Key = tuple[str, int]
"""A topic and a partition."""
Row = dict[str, Any]

BROKERS = (1, 2, 3)
TIMEOUT_S = 30.0
"""The timeout of a fetch. Its waits use the manual clock; a busy machine may need some seconds of real time."""
PAIRS = {"b1": "on23", "b2": "on13", "b3": "on12"}
"""The topic without a replica in a root."""
GROUP = "readers"
REWRITTEN = 6
"""The number of records of that topic in the remote tier."""
CUT_OFF = ("forked c", "forked d")
COLUMNS = ["offset", "timestamp", "key", "value", "headers"]


@dataclass(frozen=True)
class Original:
    """The truth about the cluster when it was built. None of it is on storage."""

    now_ms: int
    records: dict[tuple[str, int, str], dict[int, Row]]
    """Records of readers by offset, keyed by topic, partition and isolation level."""
    ends: dict[Key, int]
    """High watermarks."""
    topics: dict[str, tuple[str, int, tuple[tuple[str, str], ...]]]
    """Id, number of partitions, and configs of each topic."""
    replicas: dict[Key, tuple[int, ...]]
    leaders: dict[Key, int]
    covered: dict[Key, frozenset[int]]
    """Offsets that any data file of either tier contains."""

    def sound_topics(self, root: str) -> tuple[str, ...]:
        """Topics without a file in that root."""
        if root == "remote":
            return tuple(name for name in self.topics if name not in ("tiered", "rewritten"))
        return (PAIRS[root],) if root in PAIRS else ()


def build(folder: Path, cluster_key: KeySource) -> Original:
    """Build the cluster in an existing folder; its file and a plan of reassignments are beside its roots."""
    live = LiveCluster(folder, on_disk=True, voters=BROKERS, cluster_key=cluster_key)
    cluster = live.cluster
    cluster.topics.alter_configs(
        None,
        {
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "file.delete.delay.ms": "0",
        },
    )
    _with_a_fork(live)
    live.topic("plain", partitions=2)
    for number in range(6):
        live.append({number % 2: texts(f"plain{number}", 3 + number)}, "plain", producer="p", sequence=number)
    cluster.append_batches("plain", {0: [headed()]}).raise_for_failures()
    for name in PAIRS.values():
        live.topic(name, copies=2)
        cluster.reassign({(name, 0): [int(digit) for digit in name[2:]]}).raise_for_failures()
        live.fill([f"{name} {number}" for number in range(4)], name)
    typed = pa.struct(
        [("carrier", pa.string()), ("distance", pa.int64()), ("legs", pa.list_(pa.field("element", pa.int32())))]
    )
    with_ports(topics.create_topic, ports_of(cluster))(
        "typed",
        partitions=1,
        replication_factor=3,
        value_schema=type_to_json(typed),
        configs={"retention.ms": "-1"},
    )
    for number in range(3):
        rows = [{"carrier": f"c{number}", "distance": number * 7, "legs": [number, None]}] * 4
        cluster.append_batches(
            "typed", {0: [with_values(batch([""] * 4), pa.array(rows, typed))]}
        ).raise_for_failures()
    live.topic("merged", segment_merge_min_files="2")
    live.fill([f"merged {number}" for number in range(5)], "merged")
    cluster.merge("merged").raise_for_failures()
    live.fill(["after"], "merged")
    _with_snapshots(live)
    _with_transactions(live)
    _with_tiers(live)
    _with_a_rewrite(live)
    cluster.replicate().raise_for_failures()
    cluster.snapshot("__cluster_metadata", by_hand=True).raise_for_failures()
    cluster.topics.alter_configs(None, {"num.partitions": "2"})
    cluster.topics.alter_configs("plain", {"segment.merge.min.files": "3"})
    (folder / "plan.json").write_text(plan_json({("plain", 0): [2, 3], ("plain", 1): [3, 1, 2]}))
    return look(live.driver(), folder, live.clock.now_ms())


def look(cluster: Cluster, folder: Path, now_ms: int) -> Original:
    """Read the cluster as readers do."""
    image = cluster.image
    views = {(view.topic, view.partition): view for name in sorted(image.topic_ids) for view in image.views(name)}
    records, ends = {}, {}
    for (name, partition), view in views.items():
        assert view.leader is not None
        for isolation in Isolation:
            rows, ends[name, partition] = read_all(cluster, name, partition, isolation)
            records[name, partition, isolation.value] = rows
    return Original(
        now_ms=now_ms,
        records=records,
        ends=ends,
        topics={
            topic.name: (topic.topic_id, len(topic.partitions), tuple(sorted(topic.configs.items())))
            for topic in image.topics.values()
        },
        replicas={key: view.replicas for key, view in views.items()},
        leaders={key: view.leader or 0 for key, view in views.items()},
        covered=coverage_of(folder, ends),
    )


def read_all(cluster: Cluster, topic: str, partition: int, isolation: Isolation) -> tuple[dict[int, Row], int]:
    """Every record of a partition by offset, and its high watermark."""
    found: dict[int, Row] = {}
    image = cluster.image
    position = image.view(image.topic(topic).topic_id, partition).log_start_offset
    while True:
        some = cluster.fetch(topic, partition, position, isolation=isolation, timeout_s=TIMEOUT_S)
        found.update((row["offset"], row) for row in rows_of(some.records))
        if some.next_offset == position:
            return found, some.high_watermark
        position = some.next_offset


def rows_of(table: pa.Table) -> list[Row]:
    """The fields of each record that a reader gets. Invalid bytes in a text column are detected when they are
    decoded."""
    try:
        return table.select(COLUMNS).to_pylist()
    except UnicodeDecodeError:
        return [{"offset": offset, "value": b"no text"} for offset in table.column("offset").to_pylist()]


def texts(name: str, count: int) -> list[str]:
    """Distinct values that are long enough for several pages."""
    return [f"{name}/{number} " + name[-1] * 40 for number in range(count)]


def headed() -> pa.RecordBatch:
    """Records with keys and headers."""
    rows = batch(["x", None, ""], 5_000_000)
    headers = [[{"key": "h", "value": b"1"}], [], None]
    columns = {name: rows.column(name) for name in rows.schema.names}
    columns["key"] = pa.array([b"k", None, b""], pa.binary())
    columns["headers"] = pa.array(headers, rows.schema.field("headers").type)
    return pa.RecordBatch.from_pydict(columns)


def with_values(rows: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    """The records with other values."""
    columns = {name: rows.column(name) for name in rows.schema.names}
    return pa.RecordBatch.from_pydict({**columns, "value": values})


def _with_snapshots(live: LiveCluster) -> None:
    configs = {"cleanup.policy": "snapshot", "metadata.start.offset.lag.time.max.ms": "0"}
    live.cluster.topics.create("snaps", partitions=1, replication_factor=3, configs=configs)
    for number in range(3):
        pairs = [(f"k{number}", f"v{number}"), ("same", str(number))]
        live.cluster.append_batches("snaps", {0: [keyed(pairs, live.clock.now_ms())]}).raise_for_failures()
        if number == 1:
            live.cluster.snapshot("snaps", by_hand=True).raise_for_failures()
    live.cluster.snapshot("snaps", by_hand=True).raise_for_failures()
    live.cluster.append_batches("snaps", {0: [keyed([("k9", "v9")], live.clock.now_ms())]}).raise_for_failures()


def _with_transactions(live: LiveCluster) -> None:
    live.topic("ledger")
    for name, commit in (("t-1", True), ("t-2", False), ("t-1", True)):
        transaction = live.cluster.transactions.begin(name)
        transaction.append_batches("ledger", {0: [batch([f"{name} {commit}"])]})
        if commit:
            transaction.commit_offsets(GROUP, {("plain", 0): 1})
            transaction.commit()
        else:
            transaction.abort()
    live.cluster.groups.commit(GROUP, {("plain", 0): 3, ("ledger", 0): 2})
    live.cluster.groups.commit("others", {("plain", 1): 1})
    transaction = live.cluster.transactions.begin("t-3", timeout_ms=900_000)
    transaction.append_batches("ledger", {0: [batch(["open"])]})


def _with_tiers(live: LiveCluster) -> None:
    live.cluster.topics.create(
        "tiered", partitions=1, replication_factor=3, configs={**TIERED, "file.delete.delay.ms": "0"}
    )
    for number in range(4):
        live.fill([f"tiered {number}.{each}" for each in range(2)], "tiered", at_ms=1 + number)
        live.cluster.tier("tiered").raise_for_failures()
        if number == 2:
            topic_id = live.cluster.image.topic("tiered").topic_id
            DeltaTable(str(live.remote / f"tiered-{topic_id}")).create_checkpoint()
    live.cluster.retain("tiered").raise_for_failures()
    live.fill(["tail 1", "tail 2"], "tiered", at_ms=9)


def _with_a_rewrite(live: LiveCluster) -> None:
    """Rewrite the table with OPTIMIZE. The segments are not vacuumed yet."""
    live.tiered("rewritten")
    live.fill([f"rewritten {number}" for number in range(REWRITTEN)], "rewritten")
    live.cluster.tier("rewritten").raise_for_failures()
    for _ in range(2):
        live.cluster.retain("rewritten").raise_for_failures()
    topic_id = live.cluster.image.topic("rewritten").topic_id
    DeltaTable(str(live.remote / f"rewritten-{topic_id}")).optimize.compact()


def _with_a_fork(live: LiveCluster) -> None:
    """Elect another replica uncleanly while only the leader has the last records."""
    live.topic("forked", file_delete_delay_ms="86400000")
    old, others = live.leader("forked"), live.followers("forked")
    live.fill(["forked a", "forked b"], "forked")
    for broker in others:
        live.cluster.brokers.fence(broker).raise_for_failures()
    live.fill(CUT_OFF, "forked")
    live.cluster.brokers.fence(old, force=True).raise_for_failures()
    for broker in others:
        live.cluster.brokers.unfence(broker).raise_for_failures()
    live.cluster.elect("forked", unclean=True).raise_for_failures()
    live.fill(["forked X"], "forked")
    live.cluster.brokers.unfence(old).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
