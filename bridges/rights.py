"""The least rights of a role, as a method of the cluster: ``cluster.policy``."""

from __future__ import annotations

from stratalog.bridges.policy import printed
from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.driver.opening import Ports


class Rights:
    """An open cluster, as those use it who grant rights on its storage."""

    _ports: Ports

    def policy(self, role: str, topics: TopicNames = None, *, storage: str) -> str:
        """The least policy of a role on the topics (None: all, also those to come) for ``storage``: ``aws``,
        ``azure``, ``gcs`` or ``posix``. A ``reader`` writes nothing, a ``producer`` deletes nothing, an
        ``operator`` runs the upkeep; see ``stratalog.bridges.policy.statements``.

            print(cluster.policy("producer", ["trips"], storage="aws"))

        Raises: InvalidCallError, UnknownTopicOrPartitionError, InvalidTopicError.
        """
        return printed.policy(self._ports.metadata, self._ports.storage, role, names(topics), storage)
