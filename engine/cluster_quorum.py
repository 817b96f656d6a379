"""The cluster as one object: its metadata's quorum."""

from __future__ import annotations

from engine.context import Context
from engine.metadata.image import ClusterImage
from engine.operations import quorum
from engine.report import Report
from partitions.numbers import whole


class QuorumOfCluster:
    """A part of ``engine.cluster.Cluster``."""

    _context: Context

    @property
    def last_known_image(self) -> ClusterImage:
        """The metadata as this driver saw it last, at the latest when it opened the cluster: also while a majority
        of the voters is gone, and ``image`` raises NoMajorityError. ``next_offset`` tells how far it goes.
        """
        return self._context.metadata.last_known.image

    def describe_quorum(self) -> Report:
        """Every metadata voter, as a table: its epoch, its log's end and lag, its snapshots; and who leads."""
        return quorum.describe_quorum(self._context)

    def snapshot_metadata(self, *, by_hand: bool = True, dry_run: bool = False) -> Report:
        """Take a snapshot of the metadata log by hand, and tell what became of each voter. (``snapshot`` keeps it
        short by its policy, with the logs of topics.) Without ``by_hand`` where that policy wants one.
        """
        return quorum.snapshot_metadata(self._context, by_hand=by_hand, dry_run=dry_run)

    def add_voter(self, broker: int, *, dry_run: bool = False) -> Report:
        """Make a broker a metadata voter; then let the cluster file say so."""
        return quorum.add_voter(self._context, whole(broker, "broker"), dry_run=dry_run)

    def remove_voter(self, broker: int, *, dry_run: bool = False) -> Report:
        """Make a broker no metadata voter any more; then let the cluster file say so."""
        return quorum.remove_voter(self._context, whole(broker, "broker"), dry_run=dry_run)

    def replace_voter(self, broker: int, *, dry_run: bool = False) -> Report:
        """Let a broker that lost its storage, and was bootstrapped since, vote with what it has now."""
        return quorum.replace_voter(self._context, whole(broker, "broker"), dry_run=dry_run)
