"""The quorum of a cluster's metadata: ``cluster.quorum``."""

from __future__ import annotations

from stratalog.engine.admin import quorum
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.partitions.numbers import whole


class Quorum:
    """The quorum of a cluster's metadata: its voters, and the snapshots of its log.

        cluster.quorum.describe().rows
        cluster.quorum.add_voter(4)

    Voters change one at a time. ``Cluster.sign`` signs the metadata of a cluster that had no key.
    """

    def __init__(self, ports: Ports) -> None:
        """Use ``Cluster.quorum``."""
        self._ports = ports

    def __repr__(self) -> str:
        return "The voters of a cluster's metadata: describe() shows them"

    def describe(self) -> Report:
        """List the metadata voters and their leader, and the log end, lag and snapshots of each voter."""
        return quorum.describe_quorum(self._ports.metadata, self._ports.execution)

    @operation("quorum snapshot")
    def snapshot(self, *, by_hand: bool = True, dry_run: bool = False, check: bool = True) -> Report:
        """Take a snapshot of the metadata log now, and report the result for each voter. With ``by_hand=False``,
        take it only if the policy requires a snapshot. ``Cluster.snapshot`` also applies this policy."""
        return quorum.snapshot_metadata(
            self._ports.metadata, self._ports.execution, self._ports.memory, by_hand=by_hand, dry_run=dry_run
        )

    @operation("quorum add_voter")
    def add_voter(self, broker: int, *, dry_run: bool = False, check: bool = True) -> Report:
        """Make a broker a metadata voter. Afterwards, add the broker to the voters in the cluster file.

        Args:
            broker: the broker
        """
        return quorum.add_voter(*self._ports.for_tasks, whole(broker, "broker"), dry_run=dry_run)

    @operation("quorum remove_voter")
    def remove_voter(self, broker: int, *, dry_run: bool = False, check: bool = True) -> Report:
        """Remove a broker from the metadata voters. Afterwards, remove the broker from the voters in the cluster
        file.

        Args:
            broker: the broker
        """
        return quorum.remove_voter(*self._ports.for_tasks, whole(broker, "broker"), dry_run=dry_run)

    @operation("quorum replace_voter")
    def replace_voter(self, broker: int, *, dry_run: bool = False, check: bool = True) -> Report:
        """Let a voter vote with its new storage. After the loss of the old storage, its broker must first be
        bootstrapped.

        Args:
            broker: the broker
        """
        return quorum.replace_voter(*self._ports.for_tasks, whole(broker, "broker"), dry_run=dry_run)
