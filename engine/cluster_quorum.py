"""The cluster as one object: its metadata's quorum."""

from __future__ import annotations

from pathlib import Path

from stratalog.engine.admin import quorum
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.config.key_source import KeySource, key_of_environment, read_key
from stratalog.engine.driver.context import Context, Progress
from stratalog.engine.driver.opening import OpenStore, open_context
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import ClusterKeyError
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.numbers import whole
from stratalog.partitions.store import open_store


class QuorumOfCluster:
    """A part of ``stratalog.engine.cluster.Cluster``."""

    _context: Context

    @property
    def last_known_image(self) -> ClusterImage:
        """The metadata as this driver saw it last, at the latest when it opened the cluster: also while a majority
        of the voters is gone, and ``image`` raises NoMajorityError. ``next_offset`` tells how far it goes.
        """
        return self._context.metadata.last_known.image

    @staticmethod
    def sign(
        cluster_file: str | Path,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        clock: Clock | None = None,
        new_id: NewId = random_id,
        opener: OpenStore = open_store,
        cluster_key: KeySource = key_of_environment,
    ) -> Report:
        """Sign the metadata of a cluster that had no key, or whose key was lost: what a majority of the voters
        shows now is trusted, whoever wrote it. Look at it before (``describe``, ``verify``). See
        ``stratalog.engine.quorum.signing``.

        Raises: ClusterKeyError without a key; as ``open``; NoMajorityError.
        """
        file = load_cluster_file(cluster_file)
        key = read_key(file.cluster_id, cluster_key)
        if key is None:
            raise ClusterKeyError(
                f"cluster {file.cluster_id!r} cannot be signed without a key: set STRATALOG_CLUSTER_KEY, or give "
                "the job --cluster-key-file"
            )
        clock = clock if clock is not None else SystemClock()
        trusting = key.trusting_what_is_there()
        context = open_context(
            file, clock=clock, new_id=new_id, opener=opener, key=trusting, progress=progress, as_logged=True
        )
        return quorum.sign_metadata(context, dry_run=dry_run)

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
