"""The scene of the table of rights: a cluster whose stores check the rights, and the calls of each row."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from stratalog import Cluster
from stratalog.engine.admin.topics import create_topic
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.engine.upkeep.snapshots.read_snapshot import locate
from stratalog.partitions.errors import Right, StorageAuthorizationError, StorageError
from stratalog.partitions.paths import BROKER_FILE, METADATA_TOPIC, SCHEDULES, base_name, is_probe
from stratalog.partitions.records import type_to_json
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, fence, unfence
from tests.unit.faulty_store import Faults
from tests.unit.restore_harness import Heir
from tests.unit.rights import Needs
from tests.unit.snapshot_harness import keyed
from tests.unit.transact_harness import put

CALLS: Mapping[str, Right] = {
    **dict.fromkeys(("create", "stage", "commit", "replace"), "create"),
    **dict.fromkeys(("delete", "sweep"), "delete"),
    **dict.fromkeys(("read", "stat", "open"), "read"),
    "list": "list",
}
ON_BROKERS = frozenset({"voters", "leader", "followers", "internal"})
TOPIC = re.compile(r"/([a-z_]+)-[0-9a-f]{32}")


class Guarded(LiveCluster):
    """Four brokers, the first of which votes; topic ``t`` is tiered, ``u`` is not; a group, a transaction."""

    def __init__(self, folder: Path) -> None:
        self.faults = Faults()
        super().__init__(folder, 4, through=self.faults.wrap)
        one = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
        self.cluster.topics.alter_configs(None, one)
        self.tiered()
        self.topic("u")
        self.fill("abc")
        self.fill("abc", "u")
        self.cluster.groups.commit("g", {("t", 0): 1})
        with self.cluster.transactions.begin("x") as transaction:
            put(transaction, {"u-0": "c"})
        self.cluster.tier().raise_for_failures()
        for _ in range(2):
            self.cluster.retain().raise_for_failures()
        self.fill("de")
        self.fill("de", "u")

    @contextmanager
    def guarded(self, may: Callable[[str, Right], bool]) -> Iterator[tuple[set[tuple[str, Right]], list[str]]]:
        """Inside the block, a call succeeds if ``may`` allows it. Yields the requested rights by place, and the
        refused paths."""
        asked: set[tuple[str, Right]] = set()
        refused: list[str] = []
        leaders = {topic.name: self.leader(topic.name) for topic in self.cluster.image.topics.values()}

        def before(uri: str, what: str, name: str) -> None:
            right = CALLS[what]
            places = self.places(uri, name, leaders, right)
            asked.update((place, right) for place in places)
            if not all(may(place, right) for place in places):
                refused.append(f"{uri}/{name}")
                raise StorageAuthorizationError(f"cannot {right} {refused[-1]}: denied", right, refused[-1])

        logs = self.table_logs()
        self.faults.before = before
        try:
            yield asked, refused
        finally:
            self.faults.none()
            if self.table_logs() - logs:
                asked.add(("delta", "create"))
            if logs - self.table_logs():
                asked.add(("delta", "delete"))

    def places(self, uri: str, name: str, leaders: Mapping[str, int], right: Right) -> frozenset[str]:
        """The place of a path; None for paths without restrictions."""
        if uri.startswith("file://"):
            of_ours = uri == f"file://{self.remote}"
            return frozenset({"delta" if "_delta_log" in name else "remote"} if of_ours else ())
        if is_probe(base_name(name)):  # a driver without the right to create elects without a probe
            return frozenset()
        if name == BROKER_FILE:
            return frozenset({"new"} if right == "create" else ())
        if METADATA_TOPIC in name or any(schedule in name for schedule in SCHEDULES):
            return frozenset({"voters"})
        topic = TOPIC.search(name)
        if topic is None:
            return ON_BROKERS  # the root as a whole
        if topic[1].startswith("__"):
            return frozenset({"internal"})
        if uri.startswith("memory://heir"):  # any of the heir's brokers may lead
            return frozenset({"leader", "followers"})
        leads = leaders.get(topic[1]) == int(uri.removeprefix("memory://b"))
        return frozenset({"leader" if leads else "followers"})

    def table_logs(self) -> set[Path]:
        return set(self.remote.rglob("_delta_log/*"))


Act = Callable[[Guarded, Cluster], Report | object]


def transact(live: Guarded, driver: Cluster) -> None:
    with driver.transactions.begin("y") as transaction:
        put(transaction, {"u-0": "z"})


def spare(live: Guarded) -> int:
    """A broker that does not vote, and leads neither ``t`` nor ``u``."""
    return next(broker for broker in (4, 3, 2) if broker not in (live.leader("t"), live.leader("u")))


def sign(live: Guarded) -> Report:
    return with_parts(Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root).sign(
        live.file, cluster_key=lambda: b64encode(bytes(32)).decode(), check=False
    )


def format_another(live: Guarded) -> Cluster:
    return with_parts(Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root).format(Heir(live).file)


def export(live: Guarded, driver: Cluster) -> Report:
    (to := live.folder / "exported").mkdir(exist_ok=True)
    return driver.recover("u", str(to))


def grow(live: Guarded, driver: Cluster) -> object:
    wider = pa.struct([("a", pa.string()), ("b", pa.string())])
    return ports_of(driver).metadata.submit(AlterTopic("w", value_schema=type_to_json(wider)))


def vote_with(live: Guarded, *voters: int) -> None:
    """Set the voters in the cluster file."""
    lines = live.file.read_text().splitlines()
    live.file.write_text("\n".join(f"voters = {[*voters]}" if "voters" in line else line for line in lines))


def move(live: Guarded) -> dict[tuple[str, int], list[int]]:
    """Move one replica of ``u`` to the broker without one."""
    return {("u", 0): sorted({1, 2, 3, 4} - {live.followers("u")[0]})}


ACTS: Mapping[str, tuple[Act, ...]] = {
    "open": (lambda live, driver: live.driver(),),
    "describe": (lambda live, driver: driver.describe(),),
    "health": (lambda live, driver: driver.health(),),
    "quorum.describe, brokers.list, topics.list, policy": (
        lambda live, driver: driver.quorum.describe(),
        lambda live, driver: driver.brokers.list(),
        lambda live, driver: driver.topics.list(),
        lambda live, driver: driver.policy("reader", storage="posix"),
    ),
    "fetch, tail": (
        lambda live, driver: driver.fetch("u", 0, 0),
        lambda live, driver: next(iter(driver.tail("u", start=0))),
    ),
    "fetch of tiered records": (lambda live, driver: driver.fetch("t", 0, 0),),
    "offsets, plan_read": (
        lambda live, driver: driver.offsets("t", "2000-01-01T00:00:00Z"),
        lambda live, driver: driver.plan_read("t"),
    ),
    "groups.committed, groups.lag, groups.list": (
        lambda live, driver: driver.groups.committed("g"),
        lambda live, driver: driver.groups.lag("g"),
        lambda live, driver: driver.groups.list(),
    ),
    "read_snapshot": (lambda live, driver: with_ports(locate, ports_of(driver))("s", None),),
    "snapshots, metrics": (
        lambda live, driver: driver.snapshots(),
        lambda live, driver: driver.metrics(),
    ),
    "transactions.list": (
        lambda live, driver: driver.transactions.list(),
        lambda live, driver: driver.transactions.describe("x"),
    ),
    "transactions.find_hanging, epochs": (
        lambda live, driver: driver.transactions.find_hanging(),
        lambda live, driver: driver.offset_for_leader_epoch("u", 0, 1),
    ),
    "reassignments, plan_replicas": (
        lambda live, driver: driver.reassignments(),
        lambda live, driver: driver.plan_replicas("u", replication_factor=2),
    ),
    "discarded": (lambda live, driver: driver.discarded(),),
    "recover": (export,),
    "verify": (lambda live, driver: driver.verify(deep=True),),
    "drill": (lambda live, driver: driver.drill(),),
    "append, acks=leader": (lambda live, driver: live.append("x", "u", acks="leader", driver=driver),),
    "append, acks=all": (lambda live, driver: live.append("x", "u", driver=driver),),
    "groups.commit": (lambda live, driver: driver.groups.commit("g", {("u", 0): 2}),),
    "transactions.begin": (transact,),
    "transactions.abort, transactions.finish": (
        lambda live, driver: driver.transactions.abort("z"),
        lambda live, driver: driver.transactions.finish(),
    ),
    "groups.reset_offsets": (lambda live, driver: driver.groups.reset_offsets("g", "t", to=0),),
    "groups.delete_offsets, groups.delete": (
        lambda live, driver: driver.groups.delete_offsets("g", "t"),
        lambda live, driver: driver.groups.delete("h"),
    ),
    "replicate": (lambda live, driver: driver.replicate(),),
    "merge": (lambda live, driver: driver.merge(),),
    "compact": (lambda live, driver: driver.compact(check=False),),
    "tier": (lambda live, driver: driver.tier(),),
    "heal": (lambda live, driver: driver.heal(check=False),),
    "retain": (lambda live, driver: driver.retain(check=False),),
    "snapshot": (lambda live, driver: driver.snapshot("s", by_hand=True, check=False),),
    "snapshot with a table": (lambda live, driver: driver.snapshot("s", by_hand=True, check=False),),
    "quorum.snapshot": (lambda live, driver: driver.quorum.snapshot(check=False),),
    "vacuum": (lambda live, driver: driver.vacuum(check=False),),
    "format": (lambda live, driver: format_another(live),),
    "restore": (lambda live, driver: Heir(live).restore(),),
    "bootstrap": (lambda live, driver: driver.bootstrap(spare(live), check=False),),
    "brokers.add": (lambda live, driver: driver.brokers.add(5, check=False),),
    "brokers.register, brokers.decommission": (
        lambda live, driver: driver.brokers.decommission(5),
        lambda live, driver: driver.brokers.register(4),
    ),
    "quorum.add_voter, quorum.remove_voter": (
        lambda live, driver: driver.quorum.add_voter(3),
        lambda live, driver: (vote_with(live, 1, 2, 3), live.driver().quorum.remove_voter(3))[1],
    ),
    "quorum.replace_voter": (lambda live, driver: driver.quorum.replace_voter(2),),
    "sign": (lambda live, driver: sign(live),),
    "topics.create, topics.create_partitions, topics.alter, topics.alter_configs, topics.protect": (
        lambda live, driver: driver.topics.create("n"),
        grow,
        lambda live, driver: driver.topics.create_partitions("u", 2),
        lambda live, driver: driver.topics.alter_configs("u", {"segment.bytes": "100"}),
        lambda live, driver: driver.topics.protect("u", days=1),
    ),
    "erase": (lambda live, driver: driver.erase("u", ["erased"], now=True, check=False),),
    "erase, tiered": (lambda live, driver: driver.erase("t", ["erased"], now=True, check=False),),
    "topics.delete_records": (lambda live, driver: driver.topics.delete_records("u", {0: 2}),),
    "elect": (lambda live, driver: driver.elect("u", leader=live.followers("u")[0]),),
    "brokers.fence, brokers.unfence": (
        lambda live, driver: driver.brokers.fence(4),
        lambda live, driver: driver.brokers.unfence(4),
    ),
    "reassign": (lambda live, driver: driver.reassign(move(live), check=False),),
    "cancel_reassignments": (lambda live, driver: driver.cancel_reassignments(),),
    "topics.delete": (lambda live, driver: driver.topics.delete("t", check=False),),
}


def lags(live: Guarded) -> None:
    """A follower of ``u`` is out of the ISR, and lacks the last records."""
    follower = live.followers("u")[0]

    def down(uri: str, what: str, name: str) -> None:
        if uri == f"memory://b{follower}" and CALLS[what] == "create":
            raise StorageError("the disk is full")

    live.faults.before = down
    live.append("q", "u").raise_for_failures()
    live.faults.none()


def is_damaged(live: Guarded) -> None:
    """A file of a follower of ``u`` is damaged."""
    replica = live.replica(live.followers("u")[0], "u")
    name = replica.log().chain[-1].file.object.name
    content = bytearray(replica.store.read(name))
    content[len(content) // 2] ^= 1
    replica.store.delete([name])
    replica.store.create(name, bytes(content))


def has_small_files(live: Guarded) -> None:
    live.cluster.topics.alter_configs("u", {"segment.bytes": "400"})
    live.fill("abcdefghij", "u")


def is_dirty(live: Guarded) -> None:
    """The topic ``k`` has records to compact in both tiers."""
    live.tiered("k", cleanup_policy="compact", min_cleanable_dirty_ratio="0", local_retention_bytes="-1")
    live.cluster.topics.alter_configs("k", {"local.retention.ms": "-1"})
    for value in "abc":
        live.cluster.append_batches("k", {0: [keyed([("k", value)], live.clock.now_ms())]}).raise_for_failures()
    live.cluster.tier("k").raise_for_failures()


def has_snapshots(live: Guarded) -> None:
    """Topic ``s`` has a snapshot of all records except the last ones."""
    live.topic("s", cleanup_policy="snapshot")
    _put_and_snapshot(live)


def _put_and_snapshot(live: Guarded) -> None:
    for value in "ab":
        live.cluster.append_batches("s", {0: [keyed([("k", value)], live.clock.now_ms())]}).raise_for_failures()
        if value == "a":
            live.cluster.snapshot("s", by_hand=True).raise_for_failures()


def has_a_snapshot_table(live: Guarded) -> None:
    """The topic ``s`` has a table of the same records."""
    live.topic("s", cleanup_policy="snapshot", remote_snapshot_table_enable="true")
    _put_and_snapshot(live)


def is_open(live: Guarded) -> None:
    """Transaction ``z`` is open."""
    transaction = live.cluster.transactions.begin("z")
    transaction.__enter__()
    put(transaction, {"u-0": "c"})


def has_truncated(live: Guarded) -> None:
    """The former leader of ``u`` had records that no other replica has."""
    old = live.leader("u")
    live.append("q", "u", acks="leader").raise_for_failures()
    fence(live, old)
    live.append("r", "u").raise_for_failures()
    unfence(live, old)
    live.cluster.replicate().raise_for_failures()


def has_a_new_broker(live: Guarded) -> None:
    """The cluster file has a new broker."""
    with live.file.open("a") as file:
        file.write('\n[[brokers]]\nid = 5\nrack = "e"\nlog_dir = "memory://b5"\n')
    live.cluster = live.driver()


def has_an_idle_broker(live: Guarded) -> None:
    has_a_new_broker(live)
    live.cluster.brokers.add(5).raise_for_failures()


def has_two_voters(live: Guarded) -> None:
    live.cluster.quorum.add_voter(2).raise_for_failures()
    vote_with(live, 1, 2)
    live.cluster = live.driver()


def has_three_voters_and_one_is_new(live: Guarded) -> None:
    """Broker 2 lost its disk."""
    has_two_voters(live)
    live.cluster.quorum.add_voter(3).raise_for_failures()
    vote_with(live, 1, 2, 3)
    live.wipe(2)
    live.cluster = live.driver()
    live.cluster.bootstrap(2).raise_for_failures()


def has_typed_topic(live: Guarded) -> None:
    narrow = type_to_json(pa.struct([("a", pa.string())]))
    with_ports(create_topic, ports_of(live.cluster))("w", partitions=1, replication_factor=1, value_schema=narrow)


def is_stuck(live: Guarded) -> None:
    """A reassignment of ``u`` is stuck, because nothing can be copied to the new broker."""
    plan = move(live)
    (newcomer,) = {*plan["u", 0]} - {*live.replicas("u").view.replicas}

    def full(uri: str, what: str, name: str) -> None:
        if uri == f"memory://b{newcomer}" and CALLS[what] == "create":
            raise StorageError("the disk is full")

    live.faults.before = full
    live.cluster.reassign(plan, check=False)
    live.faults.none()


def has_a_tiered_key(live: Guarded) -> None:
    live.cluster.append_batches("t", {0: [keyed([("erased", "1")], 1)]})
    live.cluster.append_batches("t", {0: [keyed([("kept", "1")], 1)]})
    live.cluster.tier().raise_for_failures()
    live.cluster.append_batches("t", {0: [keyed([("erased", "2")], 1)]})


PREPARED: Mapping[str, Callable[[Guarded], object]] = {
    "replicate": lags,
    "heal": is_damaged,
    "merge": has_small_files,
    "compact": is_dirty,
    "read_snapshot": has_snapshots,
    "snapshot": has_snapshots,
    "snapshot with a table": has_a_snapshot_table,
    "groups.delete_offsets, groups.delete": lambda live: live.cluster.groups.commit("h", {("u", 0): 1}),
    "transactions.abort, transactions.finish": is_open,
    "discarded": has_truncated,
    "recover": has_truncated,
    "brokers.add": has_a_new_broker,
    "brokers.register, brokers.decommission": has_an_idle_broker,
    "bootstrap": lambda live: live.wipe(spare(live)),
    "erase, tiered": has_a_tiered_key,
    "erase": lambda live: live.cluster.append_batches("u", {0: [keyed([("erased", "1")], 1)]}),
    "quorum.add_voter, quorum.remove_voter": has_two_voters,
    "quorum.replace_voter": has_three_voters_and_one_is_new,
    "topics.create, topics.create_partitions, topics.alter, topics.alter_configs, topics.protect": has_typed_topic,
    "cancel_reassignments": is_stuck,
}


def prepared(folder: Path, row: Needs) -> Guarded:
    live = Guarded(folder)
    PREPARED.get(row.operation, lambda _: None)(live)
    return live
