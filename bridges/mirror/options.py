"""The options of a mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.bridges.formats.typed import TypedValues
from stratalog.engine.replication.throttle import checked_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """The options of a mirror."""

    replication_factor: int | None = None
    """The replication factor of created topics; None: the cluster's default."""
    archive: bool = False
    """Whether created topics keep records that the source deletes."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """The names of some topics here, by their names in Kafka."""
    groups: bool = True
    """Whether to copy the offsets of consumer groups."""
    values: TypedValues | None = None
    """The decoder of values; None: values are bytes."""
    throttle_bytes_per_s: float | None = None
    """The limit in bytes of records per second."""
    budget_s: float | None = None
    """After this time no further piece begins; the next run continues there."""
    bulk_offsets: int | None = None
    """The least number of new offsets for which executors read and append. None: executors do so if that is faster
    (``mirror_in_bulk``).
    """
    tier: bool = False
    """Whether the source has a tier; the report then says what was read from it."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Raises: InvalidCallError for a throttle that is not above 0."""
        if self.throttle_bytes_per_s is not None:
            checked_rate(self.throttle_bytes_per_s)
