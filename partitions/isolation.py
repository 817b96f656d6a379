"""The isolation level of a reader, and its names in calls and on command lines. Pure."""

from __future__ import annotations

from enum import StrEnum

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.spelling import did_you_mean


class Isolation(StrEnum):
    """The records of transactions that a reader gets (Kafka's ``isolation.level``). No reader gets markers."""

    READ_UNCOMMITTED = "read_uncommitted"
    """All records below the high watermark, including those of open and aborted transactions."""
    READ_COMMITTED = "read_committed"
    """Records below the last stable offset, except those of aborted transactions."""


def isolation_of(given: Isolation | str) -> Isolation:
    """The isolation level of that name. Raises: InvalidCallError, which names the nearest level."""
    try:
        return Isolation(given)
    except ValueError:
        levels = [level.value for level in Isolation]
        hint = did_you_mean(str(given), levels) or f": use one of {', '.join(levels)}"
        raise InvalidCallError(f"unknown isolation {given!r}{hint}") from None
