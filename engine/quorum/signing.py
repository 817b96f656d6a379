"""Signing the metadata log of a cluster that was not signed, or whose key was lost.

It trusts the log that a majority of the voters shows now, of any author. Two snapshots are taken, signed, each
with a signed batch before it, so that the log start of every voter that is there moves above all unsigned files,
with the latest snapshot to spare (``upkeep``). The first of these batches fences drivers without the key that
claimed before; from then on they read that the log is signed, and write nothing more.
"""

from __future__ import annotations

from contextlib import suppress

from stratalog.engine.metadata.records import NoOpRecord
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.upkeep import Upkeep, keep_up
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import NotControllerError, OutcomeUnknownError

_SNAPSHOTS = 2
_NEVER_MS = 1 << 62
"""So old is no snapshot: the log starts at the second latest."""


def sign_log(log: MetadataLog, clock: Clock) -> Upkeep:
    """Sign the log; the result is that of the second snapshot. ``log`` has a key, and trusts the present log. May
    be repeated.

    Raises: as ``keep_up``.
    """
    done: Upkeep | None = None
    for _ in range(_SNAPSHOTS):
        with suppress(NotControllerError, OutcomeUnknownError):  # a faster driver has committed something
            log.claim()
            log.commit((NoOpRecord(),))
        done = keep_up(log, clock, lag_ms=_NEVER_MS)
    assert done is not None
    return done
