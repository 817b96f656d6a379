"""The options of an export."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.reading.bounds import Bound
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.address import parse_address


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of an export."""

    name: str | None = None
    """The name of the export; None: the cluster's id (only for a whole topic)."""
    target_topic: str | None = None
    """The topic in the target; None: the same name."""
    keep: bool = True
    """Whether offsets are kept."""
    start: Bound = None
    end: Bound = None
    """The range; without either bound, the whole topic is exported, and each run exports the new records."""
    groups: bool = True
    """Whether to export the offsets of groups, for a whole topic."""
    offset_map: str | None = None
    """The address of the Delta table of offsets."""
    replication_factor: int = -1
    """The replication factor of created topics; -1: the target's default."""
    throttle_bytes_per_s: float | None = None
    """The limit in bytes of records per second."""
    pace: float | None = None
    """The speed of a replay: 1 spaces records by their timestamps, 10 is ten times as fast; None: no waiting."""
    budget_s: float | None = None
    """After this time no further piece begins; the next run continues from there."""
    dry_run: bool = False
    piece_bytes: int = 8 * 1024 * 1024
    """The maximum size of a piece, in bytes."""

    @property
    def whole(self) -> bool:
        """Whether the whole topic is exported."""
        return self.start is None and self.end is None

    def __post_init__(self) -> None:
        """Check the options. Raises: InvalidCallError if they contradict each other."""
        if not self.whole and self.keep:
            raise InvalidCallError("a range needs new offsets: add --new-offsets")
        if not self.whole and self.name is None:
            raise InvalidCallError(
                "a range needs a --name: repeated exports with the same name write each record once"
            )
        if self.offset_map is not None and self.keep:
            raise InvalidCallError(
                "without --new-offsets there is no map of offsets: omit --map, or add --new-offsets"
            )
        if self.offset_map is not None:
            parse_address(self.offset_map, "the table of offsets")
