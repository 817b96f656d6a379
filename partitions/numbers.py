"""Whole numbers that callers give: offsets, epochs, partitions, brokers. Pure.

The decoder of records and footers accepts integers only: a float such as 1000.0, or a bool, would make what holds
it unreadable for good.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Annotated, SupportsIndex

from msgspec import Meta

from stratalog.partitions.errors import InvalidCallError

GREATEST = (1 << 63) - 1
"""Of 64 bits; the least one is ``-GREATEST - 1``."""
GREATEST_EPOCH = 10**10 - 1
"""Of leaders and of metadata: ten digits, as in names."""

Int64 = Annotated[int, Meta(ge=-GREATEST - 1, le=GREATEST)]
"""A whole number of 64 bits, where a decoder reads it."""
Natural = Annotated[int, Meta(ge=0, le=GREATEST)]
"""An offset, a size, a time: one that is not negative."""
Epoch = Annotated[int, Meta(ge=0, le=GREATEST_EPOCH)]
"""An epoch of a leader, or of the metadata."""


def whole(given: object, what: str, least: int | None = None, greatest: int = GREATEST) -> int:
    """``given`` as a plain int of ``[least, greatest]`` (None: the least of 64 bits), whatever kind of integer it
    is, such as numpy's; ``what`` names it in the error.

    Raises: InvalidCallError for everything else, also for a bool and for a float such as 2.0.
    """
    try:
        # Of a plain int nobody asks the protocol: that takes ten times as long.
        if type(given) is int or (isinstance(given, SupportsIndex) and not isinstance(given, bool)):
            number = operator.index(given)
            if (-GREATEST - 1 if least is None else least) <= number <= greatest:
                return number
    except TypeError:  # an array of several numbers, say
        pass
    until = "on" if greatest == GREATEST else f"to {greatest}"
    span = "of 64 bits" if least is None else f"from {least} {until}"
    raise InvalidCallError(f"{what} {given!r}: give a whole number {span}")


def whole_or_none(given: object, what: str) -> int | None:
    """As ``whole``, of 64 bits; None stays None."""
    return None if given is None else whole(given, what)


def wholes(given: Iterable[object] | object, what: str) -> tuple[int, ...]:
    """One number or several, as plain ints. Raises: as ``whole``."""
    several = given if isinstance(given, Iterable) else (given,)
    return tuple(whole(one, what) for one in several)
