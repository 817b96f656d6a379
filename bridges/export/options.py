"""How an export is to work."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.reading.bounds import Bound
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.address import parse_address


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How to export."""

    name: str | None = None
    """Of the export; None: the cluster's id, where all of a topic is exported."""
    target_topic: str | None = None
    """The topic there; None: of the same name."""
    keep: bool = True
    """Whether offsets there are those here."""
    start: Bound = None
    end: Bound = None
    """Where neither is given, all of the topic is exported, and each run brings what is new."""
    groups: bool = True
    """Whether groups come along, where all of a topic is exported."""
    offset_map: str | None = None
    """The address of the Delta table."""
    replication_factor: int = -1
    """Of topics that are made there; -1: the default there."""
    throttle_bytes_per_s: float | None = None
    """Bytes of records a second, at most."""
    pace: float | None = None
    """A speed: 1 is as far apart as the timestamps of records are, 10 ten times as fast; None: no waiting."""
    budget_s: float | None = None
    """After so long no further piece is begun; the next run goes on there."""
    dry_run: bool = False
    piece_bytes: int = 8 * 1024 * 1024
    """Of a partition, at once."""

    @property
    def whole(self) -> bool:
        """Whether all of a topic is exported."""
        return self.start is None and self.end is None

    def __post_init__(self) -> None:
        """Raises: InvalidCallError for what contradicts itself."""
        if not self.whole and self.keep:
            raise InvalidCallError("a range of a topic is exported at new offsets: --new-offsets")
        if not self.whole and self.name is None:
            raise InvalidCallError("name the export of a range: --name; one that is repeated is written once")
        if self.offset_map is not None and self.keep:
            raise InvalidCallError("offsets are kept, and need no map: leave --map out, or export --new-offsets")
        if self.offset_map is not None:
            parse_address(self.offset_map, "the table of offsets")
