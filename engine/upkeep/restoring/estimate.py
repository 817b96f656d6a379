"""The requests of a restore that its dry run leaves out, as counted with stores in memory."""

from __future__ import annotations

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.planned import Planned
from stratalog.engine.upkeep.restoring.plan import RestorePlan

_PUTS_OF_BROKER, _GETS_OF_BROKER = 9, 14
"""Checks of a root, its format, its registration, and probes of it."""
_PER_REPLICA = 5
"""Requests of either price for each replica: its start at the end of the remote log, and listings after that."""
_COMMITS, _COMMITS_TO_JOIN = 6, 2
"""Commits in addition to one for each broker and each topic."""
_LOOKS = 11


def send_restore(sends: Planned, file: ClusterFile, plan: RestorePlan) -> None:
    """Add the format of the brokers, the commits of the topics, a second plan, and the first replicate. Requests
    that delta-rs sends for the tables are not counted."""
    stores = sends.storage.stores
    brokers, voters = len(file.brokers), file.voters
    copied = any(min(topic.replication_factor, brokers) > 1 for topic in plan.topics)
    commits = _COMMITS + brokers + len(plan.topics) + copied * _COMMITS_TO_JOIN
    for voter in voters:
        sends.send(stores.get(voter), puts=2 * commits, gets=commits)
    for voter in voters[: len(voters) // 2 + 1]:
        looks = _LOOKS + 2 * brokers
        sends.send(stores.get(voter), puts=looks, gets=looks)
    for store in stores.values():
        sends.send(store, puts=_PUTS_OF_BROKER, gets=_GETS_OF_BROKER)
    for one in plan.partitions:
        for store in list(stores.values())[: one.topic.replication_factor]:
            sends.send(store, puts=_PER_REPLICA, gets=_PER_REPLICA)
    tiered, read = len(plan.tiered), sum(bool(one.segments) for one in plan.partitions)
    sends.send(sends.storage.remote, puts=4 + 6 * tiered, gets=1 + 3 * tiered + 2 * read)
