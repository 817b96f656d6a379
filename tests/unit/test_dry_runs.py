"""If a dry run finds nothing, the run does not refuse for a reason that the dry run could have known; and a dry
run refuses nothing that the run does. Each case is played twice on one cluster: the plan, then the run.

A dry run does not read the bytes that a run copies, so it leaves damage in them to the run and to ``verify
--deep``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster, OperationFailedError, Report, StratalogError
from stratalog.engine.cluster.parts import with_parts
from stratalog.partitions.errors import BrokerUnreachableError, StorageAuthorizationError
from stratalog.partitions.root import format_root
from stratalog.partitions.store import Store, StoreOptions
from tests.unit.cluster_harness import LiveCluster, report_of
from tests.unit.restore_harness import Heir
from tests.unit.rights_scene import Faults

KEY = base64.b64encode(bytes(32)).decode()

Condition = Callable[["World"], object]
Run = Callable[[Cluster, bool], Report]


class World(LiveCluster):
    """Four brokers; ``t`` and the tiered ``u`` have replicas on the first three, led by the first."""

    def __init__(self, folder: Path, key: str | None) -> None:
        self.faults = Faults()
        super().__init__(folder, 4, through=self.faults.wrap, cluster_key=lambda: key)
        self.cluster.topics.alter_configs(None, {"min.insync.replicas": "1"})
        for name, configs in (("t", {}), ("u", {"remote_storage_enable": "true", "segment_bytes": "1"})):
            self.topic(name, **configs)
            self.cluster.reassign({(name, 0): [1, 2, 3]})
            self.cluster.elect(name, leader=1, partitions=[0])
            self.fill("abc", name)
        self.cluster.tier()
        self.cluster.replicate()

    def refusing(self, address: str, error: StratalogError) -> None:
        """Let a root answer every call with this error from now on."""

        self.faults.refuse(error, at=address)


def nothing(world: World) -> None:
    pass


def denied(broker: int) -> Condition:
    """Let calls to a root fail for lack of credentials."""
    address = f"memory://b{broker}"
    return lambda world: world.refusing(address, StorageAuthorizationError("denied", "read", address))


def away(broker: int) -> Condition:
    return lambda world: world.refusing(f"memory://b{broker}", BrokerUnreachableError("it is away"))


def leader_away(world: World) -> None:
    """Broker 2, after its election."""
    for topic in ("t", "u"):
        world.cluster.elect(topic, leader=2, partitions=[0])
    world.cluster.replicate()
    away(2)(world)


def former_replica(world: World) -> None:
    """Broker 3 keeps the files of a replica until vacuum deletes them."""
    world.cluster.reassign({("t", 0): [1, 2]})


def wiped(broker: int) -> Condition:
    return lambda world: world.wipe(broker)


def formatted(broker: int, cluster_id: str = "c") -> Condition:
    """A root formatted without a signature, in a cluster that has a key."""

    def act(world: World) -> None:
        world.wipe(broker)
        format_root(world.store(broker), cluster_id, broker, world.new_id)

    return act


def another_rack(broker: int) -> Condition:
    def act(world: World) -> None:
        lines = world.file.read_text()
        world.file.write_text(
            lines.replace(f'id = {broker}\nrack = "{chr(96 + broker)}"', f'id = {broker}\nrack = "z"')
        )

    return act


def damaged(broker: int) -> Condition:
    def act(world: World) -> None:
        store, name = world.store(broker), world.log(broker).chain[0].file.object.name
        data = store.read(name)
        store.delete([name])
        store.create(name, data[:20] + bytes([data[20] ^ 1]) + data[21:])

    return act


def keyless(world: World) -> None:
    """Take the key from this process."""
    world.cluster_key = lambda: None


def misled_and_keyless(world: World) -> None:
    world.cluster.elect("t", leader=2, partitions=[0])
    keyless(world)


def replicate(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.replicate(dry_run=dry_run)


def rebuild(broker: int, *, trust_copy: bool = False) -> Run:
    return lambda cluster, dry_run: cluster.bootstrap(broker, trust_copy=trust_copy, dry_run=dry_run)


def add(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.bootstrap(4, ["t", "u"], add=True, dry_run=dry_run)


def take_over(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.bootstrap(4, instead_of=2, dry_run=dry_run)


def move(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.reassign({("t", 0): [1, 4], ("u", 0): [1, 2, 4]}, dry_run=dry_run)


def reassigning(**replicas: list[int]) -> Run:
    """New replicas for the partition of each topic."""
    plan = {(topic, 0): brokers for topic, brokers in replicas.items()}
    return lambda cluster, dry_run: cluster.reassign(plan, dry_run=dry_run)


def shrink(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.reassign({("t", 0): [2], ("u", 0): [1]}, dry_run=dry_run)


def delete_records(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.topics.delete_records("t", {0: "latest"}, dry_run=dry_run)


def erase(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.erase(["t", "u"], where="value IS NOT NULL", now=True, dry_run=dry_run)


def maintain(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.maintain(dry_run=dry_run)


def maintain_only(step: str) -> Run:
    return lambda cluster, dry_run: cluster.maintain(only=step, dry_run=dry_run)


def electing(leader: int | None, *, unclean: bool = False) -> Run:
    return lambda cluster, dry_run: cluster.elect(leader=leader, unclean=unclean, dry_run=dry_run)


def heal(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.heal(dry_run=dry_run)


def compact(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.compact(dry_run=dry_run)


def tier(cluster: Cluster, dry_run: bool) -> Report:
    return cluster.tier(dry_run=dry_run)


CASES: dict[str, tuple[Run, Condition, bool]] = {
    "replicate, without credentials for a follower": (replicate, denied(2), True),
    "replicate, a follower away": (replicate, away(2), True),
    "replicate, a follower wiped": (replicate, wiped(2), True),
    "replicate, a changed rack": (replicate, another_rack(2), True),
    "bootstrap, a changed rack": (rebuild(2), another_rack(2), True),
    "bootstrap, wiped": (rebuild(2), wiped(2), True),
    "bootstrap, away": (rebuild(2), away(2), False),
    "bootstrap, without credentials": (rebuild(2), denied(2), False),
    "bootstrap, unsigned": (rebuild(2), formatted(2), False),
    "bootstrap, of another cluster": (rebuild(2), formatted(2, "other"), False),
    "bootstrap, a copy of nothing": (rebuild(2, trust_copy=True), wiped(2), False),
    "bootstrap, more replicas": (add, nothing, True),
    "bootstrap, more replicas without credentials": (add, denied(4), False),
    "bootstrap, more replicas on an unsigned root": (add, formatted(4), False),
    "bootstrap, instead of one that is away": (take_over, away(2), True),
    "bootstrap, instead of a leader that is away": (take_over, leader_away, True),
    "bootstrap, more replicas, a leader away": (add, leader_away, True),
    "reassign": (move, nothing, True),
    "reassign, without credentials for the new broker": (move, denied(4), False),
    "reassign, the new broker away": (move, away(4), False),
    "reassign, the new broker unsigned": (move, formatted(4), False),
    "reassign, the new broker in another rack": (move, another_rack(4), True),
    "reassign, a former replica away": (move, away(2), True),
    **{
        f"reassign {replicas}, {who} away": (reassigning(**replicas), condition, True)
        for who, condition in (("a leader", leader_away), ("a follower", away(2)))
        for replicas in ({"t": [1, 4]}, {"t": [1, 3, 4]}, {"t": [1, 3]}, {"u": [1, 4]}, {"u": [1, 3]})
    },
    "reassign, the last replica away": (shrink, away(2), False),
    "reassign, the last replica damaged": (shrink, damaged(2), False),
    "reassign, another replica damaged": (shrink, damaged(1), True),
    "elect": (electing(2), nothing, True),
    "elect, the new leader away": (electing(2), away(2), False),
    "elect, without credentials for the new leader": (electing(2), denied(2), False),
    "elect, the new leader wiped": (electing(2), wiped(2), False),
    "elect, another broker away": (electing(2), away(3), True),
    "elect, without the key": (electing(2), keyless, False),
    "elect, the leader away": (electing(None), leader_away, True),
    "elect uncleanly": (electing(None, unclean=True), leader_away, True),
    "heal": (heal, damaged(2), True),
    "heal, a broker away": (heal, away(2), True),
    "heal, without credentials for a broker": (heal, denied(2), True),
    "heal, a broker unsigned": (heal, formatted(2), True),
    "erase": (erase, nothing, True),
    "delete_records": (delete_records, nothing, True),
    "delete_records, the leader away": (delete_records, leader_away, True),
    "delete_records, a follower away": (delete_records, away(2), True),
    "erase, a follower away": (erase, away(2), False),
    "erase, without credentials for a follower": (erase, denied(2), False),
    "erase, a broker without replicas away": (erase, away(4), False),
    "erase, a follower wiped": (erase, wiped(2), False),
    "erase, a former replica": (erase, former_replica, False),
    "maintain": (maintain, nothing, True),
    "maintain, a follower away": (maintain, away(2), False),
    "maintain, a leader away": (maintain, leader_away, False),
    "maintain, without credentials for a broker": (maintain, denied(4), False),
    "maintain, without the key, an election": (maintain_only("elect"), misled_and_keyless, False),
    "maintain, without the key, no tiering": (maintain_only("merge"), keyless, True),
    "compact, a broker away": (compact, away(2), True),
    "compact, a changed rack": (compact, another_rack(2), True),
    **{
        f"{run.__name__}, without the key": (run, keyless, False)
        for run in (add, take_over, move, shrink, tier, erase, maintain)
    },
}
"""The cases: for each, the run, the condition of the cluster, and whether the run succeeds."""


def succeeds(run: Callable[[], Report]) -> bool:
    try:
        run()
    except StratalogError as error:
        report = error.report if isinstance(error, OperationFailedError) else None
        assert report is None or report.failures
        return False
    return True


@pytest.mark.sample(23)
@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_succeeds_if_and_only_if_the_run_does(case: str, tmp_path: Path) -> None:
    run, condition, expected = CASES[case]
    world = World(tmp_path, KEY if "without the key" in case or "unsigned" in case else None)
    condition(world)
    before = world.driver().image
    planned = succeeds(lambda: run(world.driver(), True))
    assert world.driver().image == before, "a dry run changes nothing"
    assert planned == succeeds(lambda: run(world.driver(), False)) == expected


@pytest.mark.parametrize("run", [replicate, add, take_over, move, heal, erase])
def test_a_plan_says_which_brokers_the_run_fences_first(run: Run, tmp_path: Path) -> None:
    world = World(tmp_path, None)
    away(2)(world)
    notes = report_of(lambda: run(world.driver(), True)).notes
    assert "a run begins with: broker 2 is fenced: BROKER_NOT_AVAILABLE: it is away" in notes


@pytest.mark.parametrize("run", [add, take_over])
def test_a_plan_counts_the_copies_from_the_leader_that_the_run_elects(run: Run, tmp_path: Path) -> None:
    world = World(tmp_path, None)
    leader_away(world)
    planned, done = (run(world.driver(), dry_run).rows for dry_run in (True, False))
    assert [(row["leader"], row["files"], row["bytes"]) for row in planned] == [
        (row["leader"], row["copied_files"], row["copied_bytes"]) for row in done
    ]
    assert all(row["leader"] == 1 and row["files"] == 3 for row in planned)


def test_a_plan_of_erase_searches_the_leader_that_the_run_elects(tmp_path: Path) -> None:
    world = World(tmp_path, None)
    leader_away(world)
    planned, done = (report_of(lambda d=d: erase(world.driver(), d)) for d in (True, False))  # type: ignore[misc]
    names = ("topic", "records", "files", "why")
    assert [[row[name] for name in names] for row in planned.rows] == [
        [row[name] for name in names] for row in done.rows
    ]
    assert all(row["records"] for row in planned.rows)
    assert world.driver().image.view(world.cluster.image.topic("t").topic_id, 0).leader == 1


def root_of(world: World) -> Store:
    return world.open_root("memory://heir-b2", StoreOptions(), world.clock)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (nothing, True),
        (lambda world: root_of(world).create("file", b""), True),
        (lambda world: world.refusing("memory://heir-b2", BrokerUnreachableError("it is away")), False),
        (lambda world: world.refusing("memory://heir-b1", StorageAuthorizationError("denied", "read", "")), False),
        (lambda world: format_root(root_of(world), "other", 2, world.new_id), False),
        (lambda world: format_root(root_of(world), "heir", 3, world.new_id), False),
        (lambda world: format_root(root_of(world), "heir", 2, world.new_id), False),
    ],
    ids=["empty", "a file", "away", "without credentials", "another cluster", "another broker", "lost metadata"],
)
def test_a_restore_looks_at_the_roots_first(condition: Condition, expected: bool, tmp_path: Path) -> None:
    world = World(tmp_path, None)
    condition(world)
    heir = Heir(world)
    parts = with_parts(Cluster, clock=world.clock, new_id=world.new_id, opener=world.open_root)
    planned, done = (succeeds(lambda: parts.restore(heir.file, "c", dry_run=dry)) for dry in (True, False))  # noqa: B023 - called at once
    assert planned == done == expected
