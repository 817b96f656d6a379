"""Finds files of a removal of records that is later than the last removal in a view
(``stratalog.partitions.removal``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import CorruptionError, FencedLeaderEpochError
from stratalog.partitions.listing import Listing
from stratalog.partitions.paths import DataName, name_in, parse_name
from stratalog.partitions.replica import Replica


class LaterRuleError(FencedLeaderEpochError):
    """A replica has files of a removal that is later than the view's last removal. Either the view is outdated, or
    no rule made the files.
    """

    def __init__(
        self, *args: object, view: PartitionView | None = None, names: frozenset[str] = frozenset()
    ) -> None:
        """``names`` are the names of the files."""
        super().__init__(*args)
        self.view, self.names = view, names


def check_rules_known(
    replicas: PartitionReplicas, listing: Listing, start: int, replica: Replica | None = None
) -> None:
    """Check that ``replica`` (None: the leader), listed as ``listing``, has no file at or after offset ``start``
    that belongs to a later removal than the view knows. A view ignores such a file. The file that it replaced may
    be deleted, and then the replica would seem damaged. It is also possible that a late append has taken the free
    name; the log would then contain that append and seem complete. Files that are known to be of no rule are
    skipped.

    Raises: LaterRuleError.
    """
    replica = replica or replicas.leader
    parsed = (parse_name(name_in(replica.folder, stored.name)) for stored in listing.foreign)
    later = [name for name in parsed if isinstance(name, DataName) and name.least_end > start]
    names = frozenset(map(str, later)) - replicas.foreign
    if names:
        raise LaterRuleError(
            f"{replica} has {min(names)}, which follows a removal of records that this view lacks: read the "
            "metadata again",
            view=replicas.view,
            names=names,
        )


@contextmanager
def under_known_rules(replicas: PartitionReplicas, follower: Replica) -> Iterator[None]:
    """Report damage of the leader or the follower only if the view has the rules of their files. A view without
    these rules ignores rewritten files, so an intact replica looks as if it had lost records.

    Raises: LaterRuleError instead of a CorruptionError.
    """
    try:
        yield
    except CorruptionError:
        for replica in (replicas.leader, follower):
            check_rules_known(replicas, replica.list(), 0, replica)
        raise
