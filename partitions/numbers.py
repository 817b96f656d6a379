"""Integers from callers: offsets, epochs, partitions, brokers. Pure.

The decoder of records and footers accepts only integers: a stored float such as 1000.0, or a bool, would make a
file unreadable forever.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Annotated, SupportsIndex

from msgspec import Meta

from stratalog.partitions.errors import InvalidCallError

GREATEST = (1 << 63) - 1
"""The maximum of a 64-bit integer; the minimum is ``-GREATEST - 1``."""
GREATEST_EPOCH = 10**10 - 1
"""The maximum epoch of leaders and of the metadata: ten digits, as in names."""

Int64 = Annotated[int, Meta(ge=-GREATEST - 1, le=GREATEST)]
"""A 64-bit integer, for decoders."""
Natural = Annotated[int, Meta(ge=0, le=GREATEST)]
"""A 64-bit integer that is not negative, such as an offset, a size or a time."""
Epoch = Annotated[int, Meta(ge=0, le=GREATEST_EPOCH)]
"""An epoch of a leader, or of the metadata."""


def whole(given: object, what: str, least: int | None = None, greatest: int = GREATEST) -> int:
    """Convert ``given``, an integer of any type (such as numpy's), to an int in ``[least, greatest]`` (None: the
    least 64-bit integer); ``what`` names the integer in errors.

    Raises: InvalidCallError for any other value, including a bool or a float such as 2.0.
    """
    try:
        # A plain int skips the protocol check, which takes ten times as long.
        if type(given) is int or (isinstance(given, SupportsIndex) and not isinstance(given, bool)):
            number = operator.index(given)
            if (-GREATEST - 1 if least is None else least) <= number <= greatest:
                return number
    except TypeError:  # for example an array of several numbers
        pass
    until = "on" if greatest == GREATEST else f"to {greatest}"
    span = "of 64 bits" if least is None else f"from {least} {until}"
    raise InvalidCallError(f"{what} {given!r}: give a whole number {span}")


def whole_or_none(given: object, what: str) -> int | None:
    """``whole`` for 64 bits; None stays None."""
    return None if given is None else whole(given, what)


def wholes(given: Iterable[object] | object, what: str) -> tuple[int, ...]:
    """One integer or several, as ints. Raises: see ``whole``."""
    several = given if isinstance(given, Iterable) else (given,)
    return tuple(whole(one, what) for one in several)
