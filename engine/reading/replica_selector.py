"""Which replica a reader reads from (KIP-392): the plugin ``replica.selector.class``, and the two that ship.

A selector sees where the reader is and how far each replica is, and names one; none stands for the leader. It is
asked for every partition of every read, and never sees a replica that could serve nothing of it: one that is
fenced, that has been out of sync for longer than ``replica.lag.time.max.ms``, that cannot be reached, or that does
not hold the first offset (``engine.operations.reading.nearest``).

A class of one's own subclasses ``ReplicaSelector`` and is named with its module, as in ``my_racks.CheapestLink``;
every driver that reads has to be able to import it.
"""

from __future__ import annotations

import difflib
import importlib
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from partitions.errors import InvalidConfigError

KEY = "replica.selector.class"


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """What is known of a reader; None where it is not."""

    rack: str | None = None
    """``client.rack``: compared with the racks of brokers, letter by letter."""
    client_id: str | None = None
    principal: str | None = None
    address: str | None = None


NOWHERE = ClientMetadata()
"""A reader of whom nothing is known."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, as it was listed for this read."""

    broker: int
    rack: str | None
    endpoint: str
    """The address of the broker's root."""
    log_end_offset: int
    log_start_offset: int
    """The first offset that it serves."""
    time_since_last_caught_up_ms: int
    """How long it has lacked something that its leader holds; 0: it lacks nothing."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas that could serve a read (Kafka's ``PartitionView``)."""

    leader: ReplicaView
    replicas: Sequence[ReplicaView]
    """The leader among them."""


@runtime_checkable
class ReplicaSelector(Protocol):
    """The plugin. Made without arguments and configured once; ``select`` is called by several threads."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """Told once what is set on the cluster, as text."""
        return

    @abstractmethod
    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        """One of ``partition.replicas``, or None for the leader."""
        ...

    def close(self) -> None:
        """Told when another selector takes its place."""
        return


class LeaderSelector(ReplicaSelector):
    """Always the leader."""

    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        """See ``ReplicaSelector``."""
        return partition.leader


class RackAwareReplicaSelector(ReplicaSelector):
    """A replica in the reader's rack: the leader, if it is there; else the most caught up, which is the one with
    the greatest log end, then the one that was caught up last, then the one of the greatest broker id. The leader,
    where no replica is in that rack, and where the reader's is not known.
    """

    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        """See ``ReplicaSelector``."""
        if not client.rack or partition.leader.rack == client.rack:
            return partition.leader
        near = [replica for replica in partition.replicas if replica.rack == client.rack]
        return max(near, key=_caught_up, default=partition.leader)


def _caught_up(replica: ReplicaView) -> tuple[int, int, int]:
    return replica.log_end_offset, -replica.time_since_last_caught_up_ms, replica.broker


_SHIPPED: Mapping[str, type[ReplicaSelector]] = {
    f"org.apache.kafka.common.replica.{shipped.__name__}": shipped
    for shipped in (LeaderSelector, RackAwareReplicaSelector)
}
"""By Kafka's names of the classes."""


def load_selector(name: str, configs: Mapping[str, str]) -> ReplicaSelector:
    """The selector of that name, configured with what is set on the cluster: a class of Kafka's that is here too,
    a class of Python by its full name, or, for the empty name, the leader's.

    Raises: InvalidConfigError when there is no such class, it is no ReplicaSelector, or it cannot be made or
        configured.
    """
    selector_class = _SHIPPED.get(name) or (_python_class(name) if name else LeaderSelector)
    try:
        selector = selector_class()
        selector.configure(configs)
    except Exception as error:  # it is not our code: whatever it raises
        raise InvalidConfigError(
            f"{KEY} = {name}: it cannot be configured: {_said(error)}; correct the class, or unset {KEY}"
        ) from error
    return selector


def _python_class(name: str) -> type[ReplicaSelector]:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        nearest = difflib.get_close_matches(name, _SHIPPED, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]}?" if nearest else "it is a class by its full name, module and all"
        raise InvalidConfigError(f"{KEY} = {name}: there is no such class ({_said(error)}); {hint}") from error
    if not isinstance(found, type) or not issubclass(found, ReplicaSelector):
        raise InvalidConfigError(
            f"{KEY} = {name}: it is no replica selector; let it be a subclass of "
            f"{ReplicaSelector.__module__}.{ReplicaSelector.__name__}"
        )
    return found


def select_replica(
    selector: ReplicaSelector, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
) -> ReplicaView:
    """What the selector selects, the leader where it selects none.

    Raises: InvalidConfigError when it raises, or answers with something else.
    """
    topic, number = topic_partition
    what = f"{KEY} = {type(selector).__module__}.{type(selector).__qualname__}: of {topic}-{number} it"
    try:
        selected = selector.select(topic_partition, client, partition)
    except Exception as error:
        raise InvalidConfigError(f"{what} selects nothing: {_said(error)}; correct it, or unset {KEY}") from error
    if selected is None:
        return partition.leader
    if selected not in partition.replicas:
        raise InvalidConfigError(f"{what} selects {selected!r}, which is none of the replicas that it was given")
    return selected


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class CurrentSelector:
    """The selector of one driver: made when it is first asked for, and anew when the cluster's configs change.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._configs: Mapping[str, str] = {}
        self._selector: ReplicaSelector = LeaderSelector()

    def of(self, configs: Mapping[str, str]) -> ReplicaSelector:
        """The selector of a cluster on which this is set. Raises: as ``load_selector``."""
        with self._lock:
            if configs is not self._configs and configs != self._configs:
                selector = load_selector(configs.get(KEY, ""), configs)
                self._selector.close()
                self._configs, self._selector = configs, selector
            return self._selector
