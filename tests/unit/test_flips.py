"""A flipped bit is not copied (protocol, I8): every way of moving or reading bytes, at random positions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster
from stratalog.engine.metadata.reassignment_plan import ReplicaPlan
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.paths import DataName, base_name, parse_name
from tests.unit.cluster_harness import LiveCluster
from tests.unit.flip_harness import UNCOMPRESSED, Spot, Trial, Way, fill, try_way, values
from tests.unit.restore_harness import Heir
from tests.unit.snapshot_harness import Keyed, checkpoint
from tests.unit.tampering import remote_spot, spot

POSITIONS = 500
SOME = 2


def hot(live: LiveCluster) -> None:
    """Four appends on brokers 1, 2 and 3; broker 1 leads."""
    live.topic(**UNCOMPRESSED)
    fill(live, range(4))


def behind(live: LiveCluster) -> None:
    """Four appends, of which broker 3 has only the first."""
    live.topic(**UNCOMPRESSED)
    fill(live, range(4))
    live.wipe(3)


def tiered(live: LiveCluster) -> None:
    """Four appends, all of them in the remote tier, too."""
    to_be_tiered(live)
    live.cluster.tier().raise_for_failures()


def to_be_tiered(live: LiveCluster) -> None:
    live.tiered(**UNCOMPRESSED)
    fill(live, range(4))


def tiered_away(live: LiveCluster) -> None:
    """Four appends that are only in the remote tier."""
    tiered(live)
    for _ in range(2):
        live.cluster.retain().raise_for_failures()


def to_be_merged(live: LiveCluster) -> None:
    live.topic(**UNCOMPRESSED, segment_merge_min_files="2")
    fill(live, range(4))


def merged(live: LiveCluster) -> None:
    """Four appends in one segment on every broker, beside the appends themselves."""
    to_be_merged(live)
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()


def merged_alone(live: LiveCluster) -> None:
    """Four appends in one segment, on the only broker that has it."""
    live.topic(copies=1, **UNCOMPRESSED, segment_merge_min_files="2")
    fill(live, range(4))
    live.cluster.merge().raise_for_failures()


def of_leader(live: LiveCluster) -> Spot:
    leader = live.leader()
    return spot(live, leader, 0 if len(live.log(leader).chain) == 1 else 1)


def of_follower(live: LiveCluster) -> Spot:
    return spot(live, 2, 0 if len(live.log(2).chain) == 1 else 1)


def of_remote(live: LiveCluster) -> Spot:
    return remote_spot(live, 1)


def fetch(live: LiveCluster, trial: Trial) -> None:
    expected = values(range(4))
    position = 0
    while position < len(expected):
        rows = live.cluster.fetch("t", 0, position).records
        for offset, value in zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True):
            assert value.decode() == expected[offset]
        position += max(1, rows.num_rows)


def tail(live: LiveCluster, trial: Trial) -> None:
    expected = values(range(4))
    for rows in live.cluster.tail("t", start="earliest", follow=False):
        for offset, value in zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True):
            assert value.decode() == expected[offset]


def verify(live: LiveCluster, trial: Trial) -> None:
    trial.snapshot_state(live.cluster.verify("t", deep=True))
    assert trial.found


def acks_all(live: LiveCluster, trial: Trial) -> None:
    """The bit flips on the leader, after its file has its name and before it is copied."""

    def flips(uri: str, what: str, name: str) -> None:
        made = parse_name(base_name(name))
        if uri == "memory://b1" and what in ("create", "commit") and isinstance(made, DataName) and "/t-" in name:
            trial.faults.none()
            trial.flip(Spot(live.store(1), name))

    trial.faults.after = flips
    appended = live.append(values(range(4, 5)))
    trial.snapshot_state(appended)
    if appended.ok:
        trial.acknowledged += values(range(4, 5))


def reassigned(*brokers: int) -> ReplicaPlan:
    return {("t", 0): brokers}


def retain(live: LiveCluster, trial: Trial) -> None:
    for _ in range(2):
        trial.snapshot_state(live.driver().retain(check=False))


def merge(live: LiveCluster, trial: Trial) -> None:
    trial.snapshot_state(live.cluster.merge())
    trial.snapshot_state(live.cluster.replicate())
    retain(live, trial)


def restore(live: LiveCluster, trial: Trial) -> None:
    heir = Heir(live, cluster_id=f"heir-{trial.at}-{trial.bit}")
    heir.restore()
    restored: Cluster = heir.open()
    found = 0
    for part in restored.plan_read("t"):
        try:
            for offset, value in live.records(part):
                assert value == values(range(4))[offset]
        except CorruptionError:
            found += 1
    assert found == 1 or not restored.verify(deep=True).ok
    trial.found = True


def keyed(live: LiveCluster) -> None:
    """Four appends of the same keys."""
    assert isinstance(live, Keyed)
    live.begin(compression_type="uncompressed", file_delete_delay_ms="0")
    for at in range(4):
        live.put([(f"key {number}", f"value {at}.{number}") for number in range(40)])


def snapshotted(live: LiveCluster) -> None:
    """Four appends with a snapshot on every broker, and one more append."""
    keyed(live)
    assert isinstance(live, Keyed)
    live.take()
    live.cluster.replicate().raise_for_failures()
    live.put([("key 0", "new")])


def snapshot_alone(live: LiveCluster) -> None:
    """A snapshot whose records are in no log any more."""
    snapshotted(live)
    for _ in range(2):
        live.cluster.retain().raise_for_failures()


def of_checkpoint(live: LiveCluster) -> Spot:
    return checkpoint(live, 1)


def snapshot(live: LiveCluster, trial: Trial) -> None:
    trial.snapshot_state(live.cluster.snapshot("t", by_hand=True))
    retain(live, trial)


def states_are_right(live: LiveCluster, heals: bool) -> None:
    """Check that replicas with a readable snapshot and the log after it have the right state; after a heal, all
    have it. The cluster is healed in any case if no replica can be read because the leader's log is damaged.
    """
    assert isinstance(live, Keyed)

    def assert_right(broker: int) -> None:
        state = live.state(broker)
        assert state.pop("key 0") in ("value 3.0", "new")
        assert state == {f"key {number}": f"value 3.{number}" for number in range(1, 40)}

    asked = False
    for broker in live.replicas().view.replicas:
        with suppress(StratalogError):
            assert_right(broker)
            asked = True
    if asked and not heals:
        return
    live.cluster.heal()
    live.cluster.snapshot("t", by_hand=True)
    live.cluster.replicate()
    live.cluster.verify(deep=True).raise_for_failures()
    for broker in live.replicas().view.replicas:
        assert_right(broker)


SNAPSHOTS: dict[str, Any] = {"kind": Keyed, "brokers": 4, "check": states_are_right}

WAYS = {
    "read": Way(hot, of_leader, lambda live, _: live.read()),
    "read from the remote tier": Way(tiered_away, of_remote, lambda live, _: live.read(), heals=False),
    "fetch": Way(hot, of_leader, fetch),
    "fetch from the remote tier": Way(tiered_away, of_remote, fetch, heals=False),
    "sync": Way(behind, of_leader, lambda live, _: live.cluster.bootstrap(3)),
    "acks=all": Way(hot, None, acks_all),
    "append on top": Way(hot, of_leader, lambda live, _: live.append(["x"])),
    "elect": Way(hot, of_follower, lambda live, _: live.cluster.elect("t", [0], leader=2)),
    "reassign": Way(hot, of_leader, lambda live, _: live.cluster.reassign(reassigned(4, 5)), brokers=5),
    "reassign to fewer": Way(hot, of_leader, lambda live, _: live.cluster.reassign(reassigned(1), check=False)),
    "bootstrap from the remote": Way(tiered_away, of_leader, lambda live, _: live.cluster.bootstrap(3)),
    "tier": Way(to_be_tiered, of_leader, lambda live, _: live.cluster.tier()),
    "retain": Way(tiered, of_remote, retain),
    "retain, of a damaged leader": Way(tiered, of_leader, retain),
    "merge": Way(to_be_merged, of_leader, merge),
    "merged": Way(merged, of_leader, retain),
    "merged, the only replica": Way(merged_alone, of_leader, retain),
    "merged, on a follower": Way(merged, of_follower, retain),
    "bootstrap where the remote is damaged": Way(
        tiered_away, lambda live: remote_spot(live, 2), lambda live, _: live.cluster.bootstrap(3), heals=False
    ),
    "tail": Way(hot, of_leader, tail),
    "tail of the remote tier": Way(tiered_away, of_remote, tail, heals=False),
    "verify": Way(tiered, of_remote, verify),
    "verify of a broker": Way(hot, of_follower, verify),
    "vacuum": Way(tiered, of_remote, lambda live, _: live.cluster.vacuum()),
    "restore": Way(tiered_away, of_remote, restore, check=lambda *_: None),
    "snapshot": Way(
        keyed, of_leader, lambda live, _: live.cluster.snapshot("t", by_hand=True, check=False), **SNAPSHOTS
    ),
    "snapshot, of a damaged follower": Way(
        keyed, of_follower, lambda live, _: live.cluster.snapshot("t", by_hand=True), **SNAPSHOTS
    ),
    "snapshot of a damaged one": Way(snapshotted, of_checkpoint, snapshot, **SNAPSHOTS),
    "snapshot that covers the log": Way(snapshotted, of_checkpoint, retain, **SNAPSHOTS),
    "snapshot that a newcomer fetches": Way(
        snapshotted, of_checkpoint, lambda live, _: live.cluster.reassign(reassigned(4)), **SNAPSHOTS
    ),
    "snapshot alone, that a newcomer fetches": Way(
        snapshot_alone, of_checkpoint, lambda live, _: live.cluster.reassign(reassigned(4)), **SNAPSHOTS
    ),
    "snapshot alone, of the one that stays": Way(
        snapshot_alone, of_checkpoint, lambda live, _: live.cluster.reassign(reassigned(1)), **SNAPSHOTS
    ),
}


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_flipped_bit_is_found_or_harmless_and_nothing_good_is_lost(tmp_path: Path, way: str) -> None:
    try_way(tmp_path, WAYS[way], SOME, seed=len(way))


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_a_flipped_bit_at_any_of_500_positions_is_found_or_harmless(
    tmp_path: Path, way: str, record_property: Callable[[str, object], None]
) -> None:
    met = try_way(tmp_path, WAYS[way], POSITIONS, seed=14)
    record_property(way, dict(met))
    assert met.total() == POSITIONS
