"""Which records of transactions a reader gets, as callers and command lines name it. Pure."""

from __future__ import annotations

from enum import StrEnum

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.spelling import did_you_mean


class Isolation(StrEnum):
    """Which records a reader gets (Kafka's ``isolation.level``). Markers are nobody's."""

    READ_UNCOMMITTED = "read_uncommitted"
    """All below the high watermark, also of transactions that are open or aborted."""
    READ_COMMITTED = "read_committed"
    """Those below the last stable offset whose transaction, if any, was committed."""


def isolation_of(given: Isolation | str) -> Isolation:
    """The isolation level of that name. Raises: InvalidCallError naming the nearest."""
    try:
        return Isolation(given)
    except ValueError:
        levels = [level.value for level in Isolation]
        hint = did_you_mean(str(given), levels) or f": use one of {', '.join(levels)}"
        raise InvalidCallError(f"unknown isolation {given!r}{hint}") from None
