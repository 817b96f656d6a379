"""Trouble: failures that are stored until a run succeeds for the same items, or a check finds the damage repaired.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from stratalog.engine.driver.report import Failure
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    LogGapError,
    RemoteObjectMissingError,
    UnsignedError,
)
from stratalog.partitions.numbers import Int64

DAMAGE = frozenset(
    error.code
    for error in (CorruptionError, CorruptSegmentError, LogGapError, RemoteObjectMissingError, UnsignedError)
)
"""The error codes of damage that ``verify`` finds and ``heal`` repairs."""

_MOST_TEXT = 500
_MOST_LISTED = 100


class ListedFailure(NamedTuple):
    item: str
    code: str
    message: str

    def is_of(self, subjects: Collection[str]) -> bool:
        """Whether the failed item is one of these partitions or topics, or a replica of one of these partitions.
        (Names have no spaces.)
        """
        return self.item.partition(" ")[0] in subjects

    def is_at(self, places: Collection[str]) -> bool:
        """Whether the failed item is one of these partitions, replicas or remote logs, or a part of one."""
        return any(self.item == place or self.item.startswith(f"{place} ") for place in places)


class Trouble(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Failures that every run since ``since_ms`` has repeated."""

    since_ms: Int64
    failures: Int64
    listed: tuple[ListedFailure, ...] = ()
    """The first failures of the last run."""
    deep: bool = False
    """Whether the failures were found by a read of every byte."""

    @property
    def is_there(self) -> bool:
        return self.failures > 0

    def again(self, later: Trouble) -> Trouble:
        """The trouble after a later run, with the earlier ``since_ms``."""
        since_ms = min(self.since_ms, later.since_ms) if self.is_there else later.since_ms
        return msgspec.structs.replace(later, since_ms=since_ms)

    @property
    def unlisted(self) -> int:
        return self.failures - len(self.listed)

    def without_damage_of(self, subjects: Collection[str]) -> Trouble:
        """The trouble that remains after these partitions and topics were found intact."""
        return self._without(lambda one: one.code in DAMAGE and one.is_of(subjects))

    def after(self, later: Trouble, tried: Collection[str] | None) -> Trouble:
        """The trouble after a run of the same operation over the partitions and topics ``tried`` (None: all),
        whose failures are ``later``.
        """
        left = NO_TROUBLE if tried is None else self._without(lambda one: one.is_of(tried))
        return left._and(later) if left.is_there else self.again(later)

    def after_check(self, later: Trouble, unseen: Collection[str]) -> Trouble:
        """The trouble after a check that found ``later``, and could not read the ``unseen`` places: partitions,
        replicas, and remote logs.
        """
        left = self._without(lambda one: not one.is_at(unseen)) if unseen else NO_TROUBLE
        return left._and(later) if left.is_there else later

    def _and(self, later: Trouble) -> Trouble:
        """This trouble, except the items that have failed again, and the ``later`` trouble."""
        again = {one.item for one in later.listed}
        kept = tuple(one for one in self.listed if one.item not in again)
        since_ms = min(one.since_ms for one in (self, later) if one.is_there)
        failures = self.unlisted + len(kept) + later.failures
        return Trouble(since_ms, failures, (*later.listed, *kept)[:_MOST_LISTED], self.deep or later.deep)

    def _without(self, gone: Callable[[ListedFailure], bool]) -> Trouble:
        """The trouble without the ``gone`` failures. If some failures are not listed, the trouble stays unchanged
        until a run covers everything.
        """
        left = tuple(one for one in self.listed if not gone(one))
        if len(left) == len(self.listed) or self.unlisted:
            return self
        return msgspec.structs.replace(self, failures=len(left), listed=left)


NO_TROUBLE = Trouble(0, 0)


def trouble_of(failures: Sequence[Failure], now_ms: int, *, deep: bool = False) -> Trouble:
    """The trouble of a run; ``NO_TROUBLE`` without failures."""
    if not failures:
        return NO_TROUBLE
    listed = tuple(
        ListedFailure(one.item[:_MOST_TEXT], one.code[:_MOST_TEXT], one.message[:_MOST_TEXT])
        for one in failures[:_MOST_LISTED]
    )
    return Trouble(now_ms, len(failures), listed, deep)
