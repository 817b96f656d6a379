"""Leaders whose root takes no writes: another member of the ISR takes their place, as Kafka's controller elects
one where a log directory is offline.

A root is believed after ``FAILED_CREATES`` failed creates, those of the operation itself and of probes. The leader
leaves the ISR in the same commit. It is back when ``replicate`` has written to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import BrokerImage, PartitionView
from stratalog.engine.metadata.partition_commands import Altered
from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done
from stratalog.partitions.store.rules import drop_probes
from stratalog.partitions.unwritable import UnwritableStorageError

FAILED_CREATES = 3
_PROBE = bytes(64 * 1024)
"""About a small append: a disk may be too full for that, and have room for a few bytes."""


def takes_no_files(context: Context, broker: BrokerImage) -> StratalogError | None:
    """Why the broker's root takes no files, which it is asked by creating one beside the hints of jobs; None where
    it does, and where it cannot be told: it does not answer, or this driver lacks a right.
    """
    store = context.stores[broker.broker_id]
    folder = paths.schedule_folder(broker.incarnation_folder, paths.MAINTENANCE)
    probe = paths.join(folder, paths.probe_name(context.new_id()))
    try:
        store.create(probe, _PROBE)
    except UnwritableStorageError as error:
        return error.of_broker(broker.broker_id)
    except CorruptionError as error:  # something is in the way of the staging folder
        return error
    except StratalogError:
        return None
    with suppress(StratalogError):
        drop_probes(store, [probe])
    return None


def all_that_take_no_files(context: Context, brokers: Mapping[int, BrokerImage]) -> dict[int, StratalogError]:
    """Those of these brokers that take no files, and why, asked at once."""
    outcomes = context.threads.run(lambda broker: takes_no_files(context, brokers[broker]), sorted(brokers))
    return {one.item: one.value for one in outcomes if isinstance(one, Done) and one.value is not None}


Unwritable = Mapping[TopicIdPartition, tuple[PartitionView, UnwritableStorageError]]
"""Partitions whose leader's root took no write, under which view, and why."""


def unwritable_leaders(found: Iterable[tuple[PartitionView, StratalogError | None]]) -> Unwritable:
    """Of partitions, each with its view and what failed, those that failed because of their leader's root."""
    return {
        view.key: (view, error)
        for view, error in found
        if isinstance(error, UnwritableStorageError) and error.broker_id in (None, view.leader)
    }


class FailedCreates:
    """The creates that leaders have refused to one operation of this driver."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._of_broker = Counter[int]()

    def resign(self, failed: Unwritable) -> tuple[dict[TopicIdPartition, str], frozenset[TopicIdPartition]]:
        """Elect another leader for the partitions whose leader takes no writes, one commit for all, where a member
        of the ISR takes them. Returns a note for each partition that has a new leader; and those for which
        another try under the same view may do, since the leader's root has taken a file.
        """
        led = [(view, view.leader) for view, _ in failed.values() if view.leader is not None]
        self._of_broker.update(leader for _, leader in led)
        leaders = {leader: view.brokers[leader] for view, leader in led}
        believed = {leader for leader, broker in leaders.items() if self._is_believed(broker)}
        elections: dict[TopicIdPartition, Election] = {}
        for key, (view, _) in failed.items():
            successor = self._successor(view) if view.leader in believed else None
            if successor is not None:
                epoch = view.partition_epoch
                elections[key] = Election(*key, leader=successor, resign=True, partition_epoch=epoch)
        elected: dict[TopicIdPartition, str] = {}
        answers = self._context.metadata.submit(ElectLeaders(tuple(elections.values()))) if elections else ()
        for answer in answers:
            if isinstance(answer, Altered):
                view, error = failed[answer.key]
                leads = elections[answer.key].leader
                elected[answer.key] = f"{view}: broker {view.leader} leaves the ISR, broker {leads} leads: {error}"
        return elected, frozenset(key for key, (view, _) in failed.items() if view.leader not in believed)

    def _is_believed(self, leader: BrokerImage) -> bool:
        while self._of_broker[leader.broker_id] < FAILED_CREATES:
            if takes_no_files(self._context, leader) is None:
                return False
            self._of_broker[leader.broker_id] += 1
        return True

    def _successor(self, view: PartitionView) -> int | None:
        """The first member of the ISR, in the order of preference, that takes files."""
        for broker in view.replicas:
            if broker == view.leader or broker not in view.isr or view.brokers[broker].fenced:
                continue
            if broker in self._context.stores and takes_no_files(self._context, view.brokers[broker]) is None:
                return broker
        return None
