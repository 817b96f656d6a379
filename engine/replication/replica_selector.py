"""The replica selector (KIP-392): the plugin ``replica.selector.class``, and its two implementations.

A selector receives the reader's rack and the position of each replica. It selects a replica, or None for the
leader. It is called for every partition of every read. It only gets replicas that can serve the read: not fenced,
reachable, not out of sync for longer than ``replica.lag.time.max.ms``, and holding the first offset
(``stratalog.engine.replicas.nearest``).

The reading process offers selectors by name: the built-in selectors, selectors passed to ``Cluster.open``, and
selectors that installed packages declare as entry points of the group ``stratalog.replica_selectors``. The config
only names a selector. The config comes from storage that others can write, so the name is looked up among the
offered selectors, never imported.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stratalog.partitions.errors import InvalidConfigError
from stratalog.partitions.printable import printable
from stratalog.partitions.spelling import did_you_mean

KEY = "replica.selector.class"
GROUP = "stratalog.replica_selectors"
"""The entry point group for selectors of installed packages. An entry point is a name and a class."""

_SHOWN = 255
"""The maximum number of characters of an unknown name in a message; the name may have any length."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """The known properties of a reader; None for unknown fields."""

    rack: str | None = None
    """``client.rack``, compared with the racks of brokers case-sensitively."""
    client_id: str | None = None
    principal: str | None = None
    address: str | None = None


NOWHERE = ClientMetadata()
"""A reader whose properties are all unknown."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, as listed for this read."""

    broker: int
    rack: str | None
    endpoint: str
    """The address of the broker's root."""
    log_end_offset: int
    log_start_offset: int
    """The first offset that the replica serves."""
    time_since_last_caught_up_ms: int
    """How long the replica has lacked records of its leader; 0 if it lacks none."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas that could serve a read (Kafka's ``PartitionView``)."""

    leader: ReplicaView
    replicas: Sequence[ReplicaView]
    """The replicas, with the leader among them."""


@runtime_checkable
class ReplicaSelector(Protocol):
    """The plugin. A selector is made without arguments and configured once; several threads call ``select``."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """Receives the cluster's settings once, as text."""
        return

    @abstractmethod
    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        """The selected member of ``partition.replicas``, or None for the leader."""
        ...

    def close(self) -> None:
        """Called when another selector replaces this one."""
        return


class LeaderSelector(ReplicaSelector):
    """Always selects the leader."""

    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        """See ``ReplicaSelector``."""
        return partition.leader


class RackAwareReplicaSelector(ReplicaSelector):
    """Selects a replica in the reader's rack: the leader if it is there, otherwise the most caught up replica.
    (This is the one with the greatest log end, then the most recently caught up, then the greatest broker id.)
    Selects the leader if no replica is in that rack, or the rack is unknown.
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


MakeSelector = Callable[[], object]
"""Makes a selector: a selector class, or any function without arguments. The result is checked."""

_SHIPPED: Mapping[str, MakeSelector] = {
    "": LeaderSelector,
    **{
        f"org.apache.kafka.common.replica.{one.__name__}": one
        for one in (LeaderSelector, RackAwareReplicaSelector)
    },
}
"""The built-in implementations, by Kafka's class names. If the config is not set, the leader is selected."""


class OfferedSelectors:
    """The selectors that this process offers, by name."""

    def __init__(self, given: Mapping[str, MakeSelector] | None = None) -> None:
        """``given`` selectors override installed selectors, but not the built-in selectors."""
        self._given = {**(given or {}), **_SHIPPED}

    def check(self, name: str) -> None:
        """Raises: InvalidConfigError for a name that this process does not offer."""
        if self._found(name) is None:
            raise InvalidConfigError(self._not_offered(name))

    def make(self, name: str, configs: Mapping[str, str]) -> ReplicaSelector:
        """Make the selector of that name, configured with the settings of the cluster. If this process does not
        offer the name, returns the leader's selector, with a log message (KIP-392 treats the selection as a
        recommendation).

        Raises: InvalidConfigError when the class is not a ReplicaSelector, or cannot be made or configured.
        """
        make = self._found(name)
        if make is None:
            _log.warning("the leader serves all reads: %s", self._not_offered(name))
            return LeaderSelector()
        try:
            selector = make()
            if isinstance(selector, ReplicaSelector):
                selector.configure(configs)
                return selector
        except Exception as error:  # foreign code may raise anything
            raise InvalidConfigError(
                f"{KEY} = {name}: it cannot be configured: {_text_of(error)}; correct the class, or unset {KEY}"
            ) from error
        raise InvalidConfigError(
            f"{KEY} = {name}: it is not a replica selector; make it a subclass of "
            f"{ReplicaSelector.__module__}.{ReplicaSelector.__name__}"
        )

    def _found(self, name: str) -> MakeSelector | None:
        if name in self._given:
            return self._given[name]
        declared = next((entry for entry in _declared() if entry.name == name), None)
        return None if declared is None else lambda: declared.load()()

    def _not_offered(self, name: str) -> str:
        names = sorted({*filter(None, self._given), *(entry.name for entry in _declared())})
        return (
            f"{KEY} = {name[:_SHOWN]!r}: this process offers no selector of that name"
            f"{did_you_mean(name[:_SHOWN], names)}; it offers {', '.join(names)}; give it one with "
            f"Cluster.open(selectors=...), or install a package that declares it as an entry point of {GROUP}"
        )


def _declared() -> Iterator[importlib.metadata.EntryPoint]:
    """Selectors of installed packages. The working folder is not searched, because its folders may look like
    packages.
    """
    here = set()
    with suppress(OSError):  # the working folder may be deleted
        here.add(os.path.realpath(""))
    path = [folder for folder in sys.path if folder and os.path.realpath(folder) not in here]
    for distribution in importlib.metadata.distributions(path=path):
        yield from (entry for entry in distribution.entry_points if entry.group == GROUP)


def select_replica(
    selector: ReplicaSelector, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
) -> ReplicaView:
    """The replica that the selector selects, or the leader if it selects none.

    Raises: InvalidConfigError when the selector raises, or returns anything else.
    """
    topic, number = topic_partition
    what = f"{KEY} = {type(selector).__module__}.{type(selector).__qualname__}: for {topic}-{number} it"
    try:
        selected = selector.select(topic_partition, client, partition)
    except Exception as error:
        raise InvalidConfigError(f"{what} cannot select: {_text_of(error)}; correct it, or unset {KEY}") from error
    if selected is None:
        return partition.leader
    if selected not in partition.replicas:
        raise InvalidConfigError(f"{what} selects {selected!r}, which is not among the given replicas")
    return selected


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class CurrentSelector:
    """The selector of one driver: made at first use, and again when the cluster's configs change. Thread-safe."""

    def __init__(self, offered: OfferedSelectors | None = None) -> None:
        self.offered = offered if offered is not None else OfferedSelectors()
        self._lock = threading.Lock()
        self._configs: Mapping[str, str] = {}
        self._selector: ReplicaSelector = LeaderSelector()

    def of(self, configs: Mapping[str, str]) -> ReplicaSelector:
        """The selector for these cluster settings. Raises: see ``OfferedSelectors.make``."""
        with self._lock:
            if configs is not self._configs and configs != self._configs:
                before, self._selector = self._selector, self.offered.make(configs.get(KEY, ""), configs)
                self._configs = configs
                try:
                    before.close()
                except Exception as error:  # foreign code may raise anything
                    _log.warning("%r cannot be closed: %s", type(before).__qualname__, printable(_text_of(error)))
            return self._selector
