"""Positions in a log and times as callers give them, in the API and on the command line. Pure.

Text is a named position of ListOffsets (``earliest``, ``latest``, ``earliest-local`` ...) or a time in ISO 8601
(``2013-06-01``, ``2013-06-01T12:00:00+02:00``). Text without a zone is in UTC; if the call is for a DataFrame, it
is in the session's time zone (``bounds.in_zone``). A ``datetime`` must have a zone, because Python reads a
datetime without a zone as local time.

If the call asks for one place (ListOffsets, the start of a tail or stream, a group's new offset), a time means the
first record at or after that time, as in Kafka's lookup. As a bound of a read, a time bounds the records'
timestamps (``TimeRange``); there ``FirstAt`` requests the lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, SupportsIndex, get_args

from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.spelling import did_you_mean

POSITIONS: Mapping[str, OffsetSpec] = {spec.name.lower().replace("_", "-"): spec for spec in OffsetSpec}
"""The named positions of ListOffsets: ``earliest-pending-upload`` ..."""

Reset = Literal["none", "earliest", "latest"]
"""Values of auto.offset.reset, in Kafka's words: the place to continue from if retention has deleted the next
records."""
RESETS: tuple[str, ...] = get_args(Reset)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLES = "2013-06-01 or 2013-06-01T12:00:00Z"


@dataclass(frozen=True, slots=True)
class FirstAt:
    """Kafka's lookup by time (offsetsForTimes). In each partition, finds the first record, by offset, whose
    timestamp is at or after ``time``, a datetime or text; the end if there is no such record. Later records may
    have earlier timestamps. Raises: InvalidCallError for an invalid time.
    """

    time: datetime | str
    zone_is_open: bool = field(init=False, repr=False, compare=False)
    """Whether the text named no zone, so that it was read in UTC."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "zone_is_open", isinstance(self.time, str) and has_no_zone(self.time))
        object.__setattr__(self, "time", time_of(self.time, "FirstAt: time ="))

    @property
    def timestamp_us(self) -> int:
        """Microseconds since 1970."""
        assert isinstance(self.time, datetime)
        return micros(self.time)

    def __str__(self) -> str:
        return f"first-at:{time_text(self.timestamp_us)}"


Spec = OffsetSpec | FirstAt
"""A query for ListOffsets."""
Place = int | Spec
"""An offset in one partition, or a query for an offset."""


def micros(time: datetime) -> int:
    """Microseconds since 1970 of a time with a zone."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def time_text(timestamp_us: int) -> str:
    """A time in ISO 8601, UTC; a number of microseconds if it is beyond the calendar there."""
    try:
        return (_EPOCH + timedelta(microseconds=timestamp_us)).isoformat()
    except OverflowError:
        return f"{timestamp_us} us after 1970"


def has_no_zone(text: str) -> bool:
    """Whether a text is a time in ISO 8601 that names no zone."""
    try:
        return not text.isdecimal() and datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


def time_of(given: object, what: str, zone: tzinfo = UTC) -> datetime:
    """The time of a text or datetime; ``what`` names the argument in the error. ``zone`` is the zone of a text
    that names none.

    Raises: InvalidCallError, including for a datetime without a zone.
    """
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidCallError(
                f"{what} {given} has no time zone: give one, e.g. datetime(2013, 1, 1, tzinfo=UTC)"
            )
        return given
    if isinstance(given, str) and not given.isdecimal():  # digits alone could also be read as a date or an offset
        try:
            time = datetime.fromisoformat(given)
        except ValueError:
            pass
        else:
            return time if time.tzinfo is not None else time.replace(tzinfo=zone)
    raise InvalidCallError(f"{what} {given!r} is not a time: write it as {_EXAMPLES}")


def named_or_time(text: str, what: str, takes: str) -> OffsetSpec | datetime:
    """The named position or time that a text gives. ``takes`` lists the accepted values, for errors.

    Raises: InvalidCallError.
    """
    name = text.strip().lower().replace("_", "-")
    if name in POSITIONS:
        return POSITIONS[name]
    if name[:1].isdigit() and not name.isdecimal():
        return time_of(text.strip(), what)
    raise InvalidCallError(f"{what} {text!r}: give {takes}{did_you_mean(name, POSITIONS, 0.7)}")


SPECS = f"a position ({', '.join(POSITIONS)}), or a time ({_EXAMPLES})"
"""Description of the values that ``spec_of`` takes."""
PLACES = f"an offset, {SPECS}"
"""Description of the values that ``place_of`` takes."""


def spec_of(given: object, what: str) -> Spec:
    """A query for ListOffsets: a named position, or a lookup by time.

    Raises: InvalidCallError for any other value, including an offset.
    """
    match given:
        case OffsetSpec() | FirstAt():
            return given
        case datetime():
            return FirstAt(time_of(given, what))
        case str():
            found = named_or_time(given, what, SPECS)
            return FirstAt(found) if isinstance(found, datetime) else found
    raise InvalidCallError(f"{what} {given!r}: give {SPECS}")


def place_of(given: object, what: str) -> Place:
    """A place in a partition: an offset, or a query (see ``spec_of``).

    Raises: InvalidCallError; OffsetOutOfRangeError for a negative offset.
    """
    if isinstance(given, OffsetSpec | FirstAt | datetime):
        return spec_of(given, what)
    if isinstance(given, str):
        found = named_or_time(given, what, PLACES)
        return FirstAt(found) if isinstance(found, datetime) else found
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return offset_of(given, what)
    raise InvalidCallError(f"{what} {given!r}: give {PLACES}")


def offset_of(given: SupportsIndex, what: str) -> int:
    """An offset. Raises: InvalidCallError, OffsetOutOfRangeError."""
    offset = whole(given, what)
    if offset < 0:
        raise OffsetOutOfRangeError(
            f"{what.removesuffix(' =')} is {offset}: offsets start at 0; to read the last "
            "n records of each partition use last=n"
        )
    return offset


def check_has_come(place: object, what: str, now_ms: int) -> None:
    """Check that a lookup is not for a future time: the answer would be the current end, although records from
    before that time may still be appended. Raises: InvalidCallError.
    """
    if isinstance(place, FirstAt) and place.timestamp_us > now_ms * 1000 + 999:
        raise InvalidCallError(
            f"{what} {place} is in the future; it is now {time_text(now_ms * 1000)}: omit it, or use latest"
        )
