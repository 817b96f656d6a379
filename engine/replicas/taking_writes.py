"""If a leader's root refuses writes, makes another member of the ISR the leader, as Kafka does for an offline log
directory.

A root refuses writes if ``FAILED_CREATES`` creates have failed, by the operation itself or by probes. The same
commit removes the old leader from the ISR. Its broker rejoins once ``replicate`` has written to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import BrokerImage, PartitionView
from stratalog.engine.metadata.partition_commands import Altered
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done
from stratalog.partitions.store.rules import drop_probes
from stratalog.partitions.unwritable import UnwritableStorageError

FAILED_CREATES = 3
_PROBE = bytes(64 * 1024)
"""The size of the test file, about that of a small append: a full disk may still have room for a few bytes."""


def takes_no_files(storage: Storage, broker: BrokerImage) -> StratalogError | None:
    """The reason why the broker's root accepts no files, tested by creating a file next to the hints of jobs. None
    if the root accepts files, and also if the result is unknown because the root does not answer or this driver
    lacks a permission.
    """
    store = storage.stores[broker.broker_id]
    folder = paths.schedule_folder(broker.incarnation_folder, paths.MAINTENANCE)
    probe = paths.join(folder, paths.probe_name(storage.new_id()))
    try:
        store.create(probe, _PROBE)
    except UnwritableStorageError as error:
        return error.of_broker(broker.broker_id)
    except CorruptionError as error:  # another file blocks the staging folder
        return error
    except StratalogError:
        return None
    with suppress(StratalogError):
        drop_probes(store, [probe])
    return None


def all_that_take_no_files(storage: Storage, brokers: Mapping[int, BrokerImage]) -> dict[int, StratalogError]:
    """The given brokers that accept no files, with the reason. All brokers are tested concurrently."""
    outcomes = storage.threads.run(lambda broker: takes_no_files(storage, brokers[broker]), sorted(brokers))
    return {one.item: one.value for one in outcomes if isinstance(one, Done) and one.value is not None}


Unwritable = Mapping[TopicIdPartition, tuple[PartitionView, UnwritableStorageError]]
"""The partitions whose leader's root refused a write, each with its view and the error."""


def unwritable_leaders(found: Iterable[tuple[PartitionView, StratalogError | None]]) -> Unwritable:
    """The partitions of ``found`` (views and their errors) that failed because their leader's root refused a
    write.
    """
    return {
        view.key: (view, error)
        for view, error in found
        if isinstance(error, UnwritableStorageError) and error.broker_id in (None, view.leader)
    }


class FailedCreates:
    """Counts the creates that leaders have refused to one operation of this driver."""

    def __init__(self, metadata: MetadataClient, storage: Storage) -> None:
        self._metadata = metadata
        self._storage = storage
        self._of_broker = Counter[int]()

    def resign(self, failed: Unwritable) -> tuple[dict[TopicIdPartition, str], frozenset[TopicIdPartition]]:
        """Elect another leader for the partitions whose leader refuses writes, if a member of the ISR accepts
        them; one commit for all. Returns a note for each partition with a new leader. Also returns the partitions
        whose leader's root has meanwhile accepted a file: for these, a retry under the same view may succeed.
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
        answers = self._metadata.submit(ElectLeaders(tuple(elections.values()))) if elections else ()
        for answer in answers:
            if isinstance(answer, Altered):
                view, error = failed[answer.key]
                leads = elections[answer.key].leader
                elected[answer.key] = (
                    f"{view}: broker {view.leader} leaves the ISR, and broker {leads} leads: {error}"
                )
        return elected, frozenset(key for key, (view, _) in failed.items() if view.leader not in believed)

    def _is_believed(self, leader: BrokerImage) -> bool:
        while self._of_broker[leader.broker_id] < FAILED_CREATES:
            if takes_no_files(self._storage, leader) is None:
                return False
            self._of_broker[leader.broker_id] += 1
        return True

    def _successor(self, view: PartitionView) -> int | None:
        """The first member of the ISR, in order of preference, that accepts files."""
        for broker in view.replicas:
            if broker == view.leader or broker not in view.isr or view.brokers[broker].fenced:
                continue
            if broker in self._storage.stores and takes_no_files(self._storage, view.brokers[broker]) is None:
                return broker
        return None
