"""A cluster whose readers use the replica in their rack, and whose replicas lag in some way."""

from __future__ import annotations

from pathlib import Path

from stratalog.engine.replication.replica_selector import KEY
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {"a": 1, "b": 2, "c": 3}
"""The racks of the replicas."""


def racked(folder: Path, faults: Faults) -> LiveCluster:
    """Topic ``t``: six records, one per append, on brokers 1, 2 and 3 in racks a, b and c; 1 leads. Broker 4 of
    rack d has no replica."""
    live = LiveCluster(folder, brokers=4, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {KEY: RACK_AWARE})
    live.topic()
    live.cluster.reassign({("t", 0): [1, 2, 3]}).raise_for_failures()
    live.cluster.elect("t", leader=1).raise_for_failures()
    live.fill("abcdef")
    return live


def unaware(live: LiveCluster, broker: int) -> None:
    """One more record, ``g``; the broker holds it, but does not know that it is committed."""
    live.append(["g"]).raise_for_failures()
    replica = live.replica(broker)
    latest = max(replica.list().watermarks, key=lambda mark: mark.offset)
    replica.store.delete([replica.path(latest)])


def out_of_sync(live: LiveCluster, broker: int) -> None:
    """One more record, ``g``, which the broker lacks; it is out of the ISR."""
    live.cluster.brokers.fence(broker).raise_for_failures()
    live.append(["g"]).raise_for_failures()
    live.cluster.brokers.unfence(broker).raise_for_failures()
    assert broker not in live.isr()
    assert live.log(broker).log_end == 6
