"""One partition under one view of the metadata, with its replicas on their stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.remote_end import RemotePart, RemoteTail, check_reaches_remote
from stratalog.partitions.errors import LeaderNotAvailableError, UnknownBrokerError
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import Store
from stratalog.tiering.remote_log import RemoteLog


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """The view and the replicas of one partition, for a task. Picklable if its stores are picklable."""

    view: PartitionView
    stores: Mapping[int, Store]
    remote: RemotePart | None = None
    """None if the topic is not tiered."""
    foreign: frozenset[str] = frozenset()
    """The names of files that have a later generation than the view, but were made by no removal rule."""

    def __str__(self) -> str:
        return str(self.view)

    @property
    def epoch(self) -> int:
        return self.view.leader_epoch

    @property
    def leader(self) -> Replica:
        """The leader's replica.

        Raises: LeaderNotAvailableError.
        """
        if self.view.leader is None:
            raise LeaderNotAvailableError(
                f"{self} has no leader: no member of its ISR {sorted(self.view.isr)} is available; bring back a "
                "broker of the ISR, or elect --unclean"
            )
        return self.replica(self.view.leader)

    def replica(self, broker_id: int) -> Replica:
        """The replica on a broker.

        Raises: UnknownBrokerError when the cluster file does not name the broker.
        """
        store = self.stores.get(broker_id)
        if store is None:
            raise UnknownBrokerError(f"{self}: broker {broker_id} is not in the cluster file")
        broker = self.view.brokers[broker_id]
        return Replica(
            broker_id=broker_id,
            store=store,
            directory_id=broker.directory_id,
            topic=self.view.topic,
            topic_id=self.view.topic_id,
            partition=self.view.partition,
            assignment=self.view.assignments[broker_id],
            root=broker.root,
            incarnation_folder=broker.incarnation_folder,
            generation=self.view.generation,
        )

    def with_remote_log(self, log: RemoteLog) -> PartitionReplicas:
        """The same, with the remote log of its topic, which was read before the leader is listed."""
        return self if self.remote is None else replace(self, remote=self.remote.with_log(log))

    @property
    def remote_tail(self) -> RemoteTail | None:
        """The end of the remote log; None if the topic is not tiered, or the remote log was not read."""
        return None if self.remote is None else self.remote.known

    def check_remote_end(self, log: ReplicaLog) -> None:
        """Compare the leader's ``log`` with the remote log, if the remote log was read before ``log`` was listed.

        Raises: see ``check_reaches_remote``.
        """
        if self.remote_tail is not None:
            check_reaches_remote(self.view, self.leader, log, self.remote_tail)

    @property
    def acknowledging(self) -> list[int]:
        """Brokers other than the leader whose copy an acknowledgement needs: the maximal ISR."""
        return sorted((set(self.view.isr) | set(self.view.adding)) - {self.view.leader})

    @property
    def followers(self) -> list[int]:
        """All unfenced brokers with a replica, other than the leader."""
        return [
            broker_id
            for broker_id in self.view.replicas
            if broker_id != self.view.leader and not self.view.brokers[broker_id].fenced
        ]


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """The work of a task on one partition; its item name is the partition."""

    replicas: PartitionReplicas

    def stores_used(self) -> Iterable[Store]:
        """The partition's stores in both tiers; see ``stratalog.engine.driver.tasks.Work``."""
        remote = self.replicas.remote
        return [*self.replicas.stores.values(), *([] if remote is None else [remote.store])]

    def __str__(self) -> str:
        return str(self.replicas)


@dataclass(frozen=True, slots=True)
class BoundedWork(PartitionWork):
    """Work that can be done in parts."""

    most: int | None = field(default=None, kw_only=True)
    """The maximum amount of work for this part, in the work's own unit; None: all."""
