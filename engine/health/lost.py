"""Logs that are gone: their leaders have no records, and the metadata know that they had records."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.partitions import known_end
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.replication.lost_log import LogLostError, check_not_lost
from stratalog.partitions.listing import Listing
from stratalog.partitions.runner import Failed


def lost_findings(storage: Storage, sight: Sight) -> Iterator[HealthFinding]:
    """By the names in the folders; only what looks lost is looked at again, and its remote log asked."""
    suspicious = [
        seen
        for seen in sight.partitions
        if seen.leader is not None and known_end(seen.leader) < seen.view.written_to and not seen.leader.data
    ]

    def look(seen: SeenPartition) -> None:
        replicas = storage.replicas(seen.view)
        check_not_lost(replicas, replicas.leader.log(anew=True))

    for outcome in storage.threads.run(look, suspicious):
        match outcome:
            case Failed(seen, LogLostError() as error):
                others = [seen.replicas.get(broker) for broker in seen.view.isr]
                held = any(isinstance(other, Listing) and other.data for other in others)
                topic = seen.view.topic
                lost = sight.commands("recover", topic, "--keep", "brokers", "--dry-run")
                yield HealthFinding(
                    severity=Severity.ERROR,
                    kind="lost-log",
                    subjects=(str(seen),),
                    what=str(error),
                    do=sight.commands("replicate", topics=[topic]) if held else lost,
                )
