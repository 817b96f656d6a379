"""Files of a removal of records that is later than a view knows (``stratalog.partitions.removal``)."""

from __future__ import annotations

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import FencedLeaderEpochError
from stratalog.partitions.listing import Listing
from stratalog.partitions.paths import DataName, name_in, parse_name


class LaterRuleError(FencedLeaderEpochError):
    """A leader has files of a removal that is later than the view knows. Either the view is outdated, or no rule
    made the files.
    """

    def __init__(
        self, *args: object, view: PartitionView | None = None, names: frozenset[str] = frozenset()
    ) -> None:
        """``names`` are the names of the files."""
        super().__init__(*args)
        self.view, self.names = view, names


def check_rules_known(replicas: PartitionReplicas, listing: Listing, start: int) -> None:
    """Check that the leader has no file with records from offset ``start`` on that was made by a removal that is
    later than the view knows. Such a file does not count in this view. The file that it replaced may have been
    deleted, and a late append may have taken the free name. Under this view, the log would contain that append,
    and seem complete. Files that are known to be of no rule are left out.

    Raises: LaterRuleError.
    """
    leader = replicas.leader
    parsed = (parse_name(name_in(leader.folder, stored.name)) for stored in listing.foreign)
    later = [name for name in parsed if isinstance(name, DataName) and name.least_end > start]
    names = frozenset(map(str, later)) - replicas.foreign
    if names:
        raise LaterRuleError(
            f"{leader} has {min(names)}, made by a removal of records that is later than this view knows: read "
            "the metadata again",
            view=replicas.view,
            names=names,
        )
