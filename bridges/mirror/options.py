"""How a mirror is to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.bridges.formats.typed import TypedValues


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """How to mirror."""

    replication_factor: int | None = None
    """Of topics that are made; None: the cluster's default."""
    archive: bool = False
    """Of topics that are made: their records stay when the source's go."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """The names that some created topics get here, by their names in Kafka."""
    groups: bool = True
    """Whether offsets of consumer groups come along."""
    values: TypedValues | None = None
    """How values are decoded; None: they are bytes."""
    throttle_bytes_per_s: float | None = None
    """Bytes of records a second, at most."""
    budget_s: float | None = None
    """After so long no further piece is begun; the next run goes on there."""
    bulk_offsets: int | None = None
    """As many as this are new: executors read and append. None: where that is faster (``mirror_in_bulk``)."""
    dry_run: bool = False
