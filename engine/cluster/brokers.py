"""The brokers of a cluster: ``cluster.brokers``."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.engine.admin import describe_cluster
from stratalog.engine.brokers import bring_up, fence
from stratalog.engine.cluster.recorded import always, forced, operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.partitions.numbers import wholes


class Brokers:
    """The brokers of a cluster: add them, take them out of service, list them.

        cluster.brokers.add(4)
        cluster.brokers.fence([2, 3], dry_run=True)
        cluster.brokers.list().rows

    ``Cluster.bootstrap`` brings back a broker that lost its storage.
    """

    def __init__(self, ports: Ports) -> None:
        """Use ``Cluster.brokers``."""
        self._ports = ports

    def __repr__(self) -> str:
        return "The brokers of a cluster: list() shows them"

    def list(self) -> Report:
        """List all brokers."""
        return describe_cluster.describe_brokers(*self._ports.for_tasks)

    @operation("brokers add")
    def add(
        self,
        brokers: Sequence[int] | int,
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Add brokers that are new in the cluster file: format their roots, and register them.

        Args:
            if_not_exists: skip brokers that are already in the cluster

        Raises: InvalidCallError for a broker that is already in the cluster, without ``if_not_exists``.
        """
        return bring_up.add_brokers(
            *self._ports.for_tasks, wholes(brokers, "broker"), if_not_exists=if_not_exists, dry_run=dry_run
        )

    @operation("brokers register")
    def register(
        self, brokers: Sequence[int] | int | None = None, *, trust_copy: bool = False, check: bool = True
    ) -> Report:
        """Register brokers. Default: every broker of the cluster file that no operator has fenced. ``trust_copy``:
        accept roots that were moved or restored from a copy; by this you confirm that the copies are complete."""
        chosen = None if brokers is None else wholes(brokers, "broker")
        return bring_up.register_brokers(*self._ports.for_tasks, chosen, trust_copy=trust_copy)

    @operation("brokers fence", destroys=forced)
    def fence(
        self, brokers: Sequence[int] | int, *, force: bool = False, dry_run: bool = False, check: bool = True
    ) -> Report:
        """Take brokers out of service, until ``unfence`` brings them back.

        Args:
            force: fence the brokers even if that leaves partitions without a leader
        """
        return fence.fence(
            self._ports.metadata, self._ports.execution, wholes(brokers, "broker"), force=force, dry_run=dry_run
        )

    @operation("brokers unfence")
    def unfence(self, brokers: Sequence[int] | int, *, dry_run: bool = False, check: bool = True) -> Report:
        """Bring fenced brokers back into service with their current roots, including brokers that a probe
        fenced."""
        return fence.unfence(*self._ports.for_tasks, wholes(brokers, "broker"), dry_run=dry_run)

    @operation("brokers decommission", destroys=always)
    def decommission(self, brokers: Sequence[int] | int, *, dry_run: bool = False, check: bool = True) -> Report:
        """Permanently remove brokers from the metadata. They must have no replicas."""
        return fence.decommission(
            self._ports.metadata, self._ports.execution, wholes(brokers, "broker"), dry_run=dry_run
        )
