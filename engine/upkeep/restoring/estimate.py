"""The requests that a restore sends, but its dry run does not. The numbers were counted with stores in memory."""

from __future__ import annotations

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.planned import Planned
from stratalog.engine.upkeep.restoring.plan import RestorePlan

_PUTS_OF_BROKER, _GETS_OF_BROKER = 9, 14
"""Requests to check, format, register and probe a root."""
_PER_REPLICA = 5
"""The number of requests per replica, in each of the two price classes: to start the replica at the end of the
remote log, and to list it later.
"""
_COMMITS, _COMMITS_TO_JOIN = 6, 2
"""The number of commits, in addition to one for each broker and one for each topic."""
_LOOKS = 11


def send_restore(sends: Planned, file: ClusterFile, plan: RestorePlan) -> None:
    """Add the formatting of the brokers, the commits of the topics, a second plan, and the first replicate.
    Requests that delta-rs sends for the tables are not counted."""
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
