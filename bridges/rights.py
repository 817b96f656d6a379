"""The minimal permissions of a role, as a method of the cluster: ``cluster.policy``."""

from __future__ import annotations

from stratalog.bridges.policy import printed
from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.driver.opening import Ports


class Rights:
    """The method of an open cluster that prints policies."""

    _ports: Ports

    def policy(self, role: str, topics: TopicNames = None, *, storage: str) -> str:
        """Return the minimal storage policy of a role. A ``reader`` writes nothing, a ``producer`` deletes
        nothing, and an ``operator`` runs the upkeep. See ``stratalog.bridges.policy.statements``.

            print(cluster.policy("producer", ["trips"], storage="aws"))

        Args:
            role: reader, producer or operator
            topics: only these topics (default: all, including future ones)
            storage: the kind of storage: aws, azure, gcs or posix

        Raises: InvalidCallError, UnknownTopicOrPartitionError, InvalidTopicError.
        """
        return printed.policy(self._ports.metadata, self._ports.storage, role, names(topics), storage)
