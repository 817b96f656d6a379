"""Printed policies compared with the calls of each role: each call is allowed, and each allowed call is made."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from stratalog import Cluster
from stratalog.bridges.policy.layout import ClusterLayout, StorageRoot, layout_of
from stratalog.bridges.policy.role import Role
from stratalog.bridges.policy.statements import statements
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import Right, StorageAuthorizationError
from stratalog.partitions.store.rules import STAGING_FOLDER
from tests.bridges.test_policy import JUDGE, PRINT, SCHEMES
from tests.depth import at_depth
from tests.unit.rights_scene import CALLS, Guarded, has_a_snapshot_table
from tests.unit.transact_harness import put

CASES = at_depth(test=6, nightly=600)

Work: TypeAlias = Callable[[Guarded, Cluster, str], object]


def transact(live: Guarded, driver: Cluster, topic: str) -> None:
    with driver.transactions.begin(f"of {topic}") as transaction:
        put(transaction, {f"{topic}-0": "z"})


def consume(live: Guarded, driver: Cluster, topic: str) -> Report:
    """The lag of a group is read from the logs of all topics for which it has offsets."""
    driver.groups.commit(f"of-{topic}", {(topic, 0): 1})
    return driver.groups.lag(f"of-{topic}")


def grown(live: Guarded, driver: Cluster, topic: str) -> Report:
    """The topic to tier has sealed segments, in several files."""
    live.append("yz", topic, driver=driver).raise_for_failures()
    return driver.tier(topic)


READS: tuple[Work, ...] = (
    lambda live, driver, topic: driver.describe(topic),
    lambda live, driver, topic: driver.fetch(topic, 0, 0),
    lambda live, driver, topic: driver.plan_read(topic),
    lambda live, driver, topic: driver.offsets(topic, "2000-01-01T00:00:00Z"),
    lambda live, driver, topic: driver.groups.committed("g"),
    lambda live, driver, topic: driver.groups.list(),
    lambda live, driver, topic: driver.transactions.list(),
    lambda live, driver, topic: driver.verify(topic, deep=True),
    lambda live, driver, topic: driver.offset_for_leader_epoch(topic, 0, 1),
    lambda live, driver, topic: driver.brokers.list(),
    lambda live, driver, topic: driver.quorum.describe(),
)
PRODUCES: tuple[Work, ...] = (
    lambda live, driver, topic: live.append("x", topic, driver=driver),
    lambda live, driver, topic: live.append("x", topic, acks="leader", driver=driver),
    consume,
    transact,
)


def throttled(live: Guarded, driver: Cluster, topic: str) -> Report:
    """Move a replica to another broker and back, with a throttle."""
    replicas = live.replicas(topic).view.replicas
    spare = next(broker for broker in live.cluster.stores if broker not in replicas)
    driver.reassign({(topic, 0): [*replicas[:-1], spare]}, throttle_bytes_per_s=1e9)
    driver.reassign({(topic, 0): list(replicas)}, throttle_bytes_per_s=1e9)
    return driver.reassign({(topic, 0): [*replicas[:-1], spare]}, throttle_bytes_per_s=1e9)


KEEPS_UP: tuple[Work, ...] = (
    grown,
    lambda live, driver, topic: driver.tier(topic),
    lambda live, driver, topic: driver.retain(topic),
    lambda live, driver, topic: driver.merge(topic),
    lambda live, driver, topic: driver.replicate(topic),
    lambda live, driver, topic: driver.heal(topic),
    lambda live, driver, topic: driver.topics.alter_configs(topic, {"segment.bytes": "1000"}),
    lambda live, driver, topic: driver.elect(topic, leader=live.followers(topic)[0]),
    throttled,
)


SEES_EVERYTHING: tuple[Work, ...] = (
    lambda live, driver, topic: driver.health(),
    lambda live, driver, topic: driver.drill(),
)
EVERYTHING: tuple[Work, ...] = (
    *SEES_EVERYTHING,
    lambda live, driver, topic: driver.vacuum(),
    lambda live, driver, topic: driver.maintain(),
    lambda live, driver, topic: driver.quorum.snapshot(),
)
WORK: Mapping[Role, tuple[Work, ...]] = {
    Role.READER: READS,
    Role.PRODUCER: (*READS, *PRODUCES),
    Role.OPERATOR: (*READS, *PRODUCES, *KEEPS_UP),
}


SNAPSHOTS: Mapping[Role, tuple[Work, ...]] = {
    Role.READER: (lambda live, driver, topic: driver.verify("s", deep=True),),
    Role.PRODUCER: (lambda live, driver, topic: driver.verify("s", deep=True),),
    Role.OPERATOR: (
        lambda live, driver, topic: driver.snapshot("s", by_hand=True),
        lambda live, driver, topic: driver.topics.create_partitions(topic, 2),
        lambda live, driver, topic: driver.tier(topic),
        lambda live, driver, topic: driver.maintain(),
    ),
}


def layout(live: Guarded, scheme: str, topics: list[str] | None) -> ClusterLayout:
    """The layout of the cluster, as if its roots were in a bucket."""

    def moved(root: StorageRoot) -> StorageRoot:
        name = "remote" if root.address.startswith("file://") else root.address.removeprefix("memory://")
        return replace(root, address=f"{scheme}/{name}")

    found = layout_of(live.cluster.file, live.cluster.image, topics)
    assert found.remote is not None
    return replace(found, brokers=tuple(map(moved, found.brokers)), remote=moved(found.remote))


def key_of(live: Guarded, uri: str, name: str) -> str:
    return f"{'remote' if uri.startswith('file://') else uri.removeprefix('memory://')}/{name}"


@contextmanager
def judged(live: Guarded, may: Callable[[str, Right], bool]):  # type: ignore[no-untyped-def]
    """Inside the block, the storage refuses calls that ``may`` does not allow. Yields the requested and the
    refused calls."""
    asked: set[tuple[str, Right]] = set()
    refused: set[tuple[str, Right]] = set()

    def before(uri: str, what: str, name: str) -> None:
        right = CALLS[what]
        if right == "list" or not name:
            return  # each role lists the whole bucket
        key = key_of(live, uri, name)
        asked.add((key, right))
        if not may(key, right):
            refused.add((key, right))
            raise StorageAuthorizationError(f"cannot {right} {key}: denied", right, key)

    live.faults.before = before
    try:
        yield asked, refused
    finally:
        live.faults.none()


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CASES))
def test_a_role_does_only_what_it_may(tmp_path: Path, seed: int) -> None:
    """A producer's driver tries to delete the files that its merges hide; the refusal is expected."""
    rng = random.Random(seed)
    live = Guarded(tmp_path)
    storage, role = rng.choice(list(SCHEMES)), rng.choice(list(Role))
    topics = rng.choice((["t"], ["u"], ["t", "u"], None))
    work = WORK[role] + (EVERYTHING if role is Role.OPERATOR and topics is None else ())
    of = layout(live, SCHEMES[storage], topics)
    may = JUDGE[storage](PRINT[storage](role, of))
    for each in rng.sample(work, 5):
        topic = rng.choice(topics or ["t", "u"])
        with judged(live, may) as (_, refused):
            found = each(live, live.driver(), topic)
            if isinstance(found, Report):
                found.raise_for_failures()
        if role is Role.PRODUCER:
            refused = {(key, right) for key, right in refused if right != "delete"}
        assert refused == set(), (storage, role, topics)


@pytest.mark.slow
@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_do_only_what_it_does(tmp_path: Path, role: Role) -> None:
    """The role's work reads and creates in each kind of folder that a statement names. (An operator may delete
    what it may create, and no other role deletes.)"""
    live = Guarded(tmp_path)
    has_a_snapshot_table(live)
    of = layout(live, SCHEMES["aws"], ["t", "u", "s"])
    seen: set[tuple[str, Right]] = set()
    with judged(live, lambda key, right: True) as (asked, _):
        if role is not Role.OPERATOR:  # maintain writes files that these roles read later
            live.cluster.maintain()
            asked.clear()
        for each in (*WORK[role], *SEES_EVERYTHING, *(SNAPSHOTS[role])):
            each(live, live.driver(), "t")
        if role is not Role.READER:  # a follower that is away leaves the ISR
            away = live.followers("u")[0]
            with judged(live, lambda key, right: not key.startswith(f"b{away}/")) as (of_append, _):
                live.append("x", "u", driver=live.driver()).raise_for_failures()
            seen |= of_append
        seen |= asked
    given: dict[tuple[str, str, Right], bool] = {}
    for statement in statements(role, of):
        for place in statement.places:
            if place.path == STAGING_FOLDER:
                continue  # staging happens below the calls that are traced here
            below = f"{place.root.address.removeprefix('s3://bucket/')}/{place.below_root()}"
            for right in statement.rights - {"list", "delete"}:
                done = any(r == right and f"{key}/".startswith(f"{below}/") for key, r in seen)
                what = statement.name, re.sub(r"\b[tus]-[0-9a-f]{32}|-[0-9a-f]{32}", "", place.path), right
                given[what] = given.get(what, False) or done
    unasked = {what for what, done in given.items() if not done}
    assert unasked <= {("ReadTheRemoteTier", "_snapshots/", "read")}, "readers of Delta read these tables"
    deletes = {statement.name for statement in statements(role, of) if "delete" in statement.rights}
    assert bool(deletes) == (role is Role.OPERATOR)
