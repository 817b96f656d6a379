"""The query of a batch read: topics, and the bounds of each partition's range. Pure.

A place (an offset, a named position, a group's committed offset, ``FirstAt``) is a bound of offsets. A time is a
bound of the records' timestamps, whose order in the log does not matter. Both kinds of bound may be combined: from
a group's offset on, but only up to a time.

Errors that do not depend on the log are found here, before anything is listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import SupportsIndex, cast

from stratalog.engine.reading.positions import (
    FirstAt,
    Place,
    check_has_come,
    has_no_zone,
    micros,
    named_or_time,
    offset_of,
    place_of,
    time_of,
)
from stratalog.partitions.errors import InvalidCallError, UnknownTopicOrPartitionError
from stratalog.partitions.isolation import Isolation, isolation_of
from stratalog.partitions.lookup import TimeRange
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.spelling import did_you_mean

_WILDCARDS = frozenset("*?[|^$+")
"""Characters of patterns. No topic's name contains them."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a consumer group: ``start=Committed("dashboard")``. In a partition without a commit,
    the bound is the log start.
    """

    group: str


ByPartition = Mapping[int, Place | str] | Mapping[tuple[str, int], Place | str]
"""A bound by partition if there is one topic, otherwise by topic and partition."""

OffsetBound = Place | Committed | Mapping[object, Place] | None
"""A bound of offsets in each partition. If it is None, or lacks a partition, the bound there is the log start or
the high watermark.
"""

Bound = Place | datetime | str | Committed | ByPartition | None
"""A bound as a caller gives it. A time (datetime or text) bounds timestamps; other text is a named position."""

ALL_BOUNDS = (
    "an offset, a time (a datetime with a time zone, or text such as 2013-06-01), FirstAt(time), a position (an "
    "OffsetSpec, or its name, such as earliest), Committed(group), offsets by partition, or None"
)


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A batch read as requested. Raises: InvalidCallError, OffsetOutOfRangeError for contradictory arguments."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    """A regular expression that matches complete names of topics, instead of ``topics``."""
    start: Bound = None
    end: Bound = None
    partitions: Sequence[int] | None = None
    last: int | None = None
    """The number of last records before ``end`` in each partition, as an alternative to ``start``."""
    client_rack: str | None = None
    fail_on_data_loss: bool = True
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED
    first: OffsetBound = field(init=False)
    """The bound of offsets at which the range begins (``start``, unless ``start`` is a time). ``until`` is the
    bound at which the range ends.
    """
    until: OffsetBound = field(init=False)
    times: TimeRange | None = field(init=False)
    """The range of timestamps; None if neither bound is a time. Records without a timestamp are outside of every
    range."""

    def __post_init__(self) -> None:
        if (self.pattern is None) == (not self.topics):
            raise InvalidCallError("give either topics, or a pattern of their names")
        if self.last is not None:
            if self.start is not None:
                raise InvalidCallError(f"last = {self.last} and start = {self.start!r}: give only one of them")
            object.__setattr__(self, "last", whole(self.last, "last =", 1))
        bounds = {name: _checked(f"{name} =", given) for name, given in (("start", self.start), ("end", self.end))}
        times = {name: micros(at) for name, at in bounds.items() if isinstance(at, datetime)}
        object.__setattr__(self, "first", None if "start" in times else bounds["start"])
        object.__setattr__(self, "until", None if "end" in times else bounds["end"])
        object.__setattr__(self, "times", TimeRange(times.get("start"), times.get("end")) if times else None)
        check_some(self.partitions)
        isolation_of(self.isolation)
        if len(times) == 2 and times["start"] > times["end"]:
            raise InvalidCallError(f"start = {bounds['start']} is after end = {bounds['end']}")
        if times and self.last is not None:
            raise InvalidCallError(
                f"last = {self.last} and end = {bounds['end']}: last counts records by offset, "
                f"so end cannot be a time; end=FirstAt({str(bounds['end'])!r}) ends at "
                "the first record of that time or later"
            )

    @property
    def groups(self) -> set[str]:
        """The groups whose committed offsets are bounds."""
        return {bound.group for bound in (self.first, self.until) if isinstance(bound, Committed)}

    def chosen(self, names: Collection[str], internal: Collection[str]) -> list[str]:
        """The topics to read, each once; a pattern selects from ``names``, and never matches an internal topic.

        Raises: UnknownTopicOrPartitionError when the pattern matches no topic, or a given topic name is a pattern;
            InvalidCallError for an invalid regular expression.
        """
        if self.pattern is None:
            for topic in self.topics:
                if topic not in names and _WILDCARDS.intersection(topic):
                    regular = re.sub(r"(?<!\.)\*", ".*", topic)
                    raise UnknownTopicOrPartitionError(
                        f"topic {topic!r} does not exist; a pattern is a regular expression, and has its own "
                        f"argument: pattern={regular!r} (a job: --pattern)"
                    )
            return list(dict.fromkeys(self.topics))
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise InvalidCallError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error
        found = sorted(name for name in names if name not in internal and pattern.fullmatch(name))
        if not found:
            raise UnknownTopicOrPartitionError(
                f"no topic matches the pattern {self.pattern!r}{did_you_mean(self.pattern, names)}"
            )
        return found

    def check_times(self, now_ms: int) -> None:
        """Raises: InvalidCallError for a lookup of a future time. (Records may have such timestamps, and a range
        of times may include them.)
        """
        for name, bound in (("start =", self.first), ("end =", self.until)):
            for place in bound.values() if isinstance(bound, Mapping) else [bound]:
                check_has_come(place, name, now_ms)

    def named(self, topics: Sequence[str]) -> dict[str, dict[str, dict[int, Place]]]:
        """The bounds given by partition: ``start`` and ``end``, each by topic.

        Raises: InvalidCallError, UnknownTopicOrPartitionError for a key that is not a partition of these topics.
        """
        return {
            name: _by_topic(name, bound, topics)
            for name, bound in (("start", self.first), ("end", self.until))
            if isinstance(bound, Mapping)
        }


def in_zone(bound: Bound, zone: Callable[[], tzinfo]) -> Bound:
    """Return the bound. A time that is text without a zone is read in ``zone``, which is called only for such a
    text. (A skipped local time becomes the later one, and a repeated local time the first one, as in Spark.)
    """

    def zoned(at: object) -> object:
        if isinstance(at, FirstAt) and at.zone_is_open:
            assert isinstance(at.time, datetime)
            return FirstAt(at.time.replace(tzinfo=zone()))
        if isinstance(at, str) and has_no_zone(at.strip()):
            return time_of(at.strip(), "a time:", zone())
        return at

    if isinstance(bound, Mapping):
        return cast(Bound, {key: zoned(at) for key, at in bound.items()})
    return cast(Bound, zoned(bound))


def check_some(partitions: Sequence[int] | None) -> None:
    """Check that at least one partition is given, because a reader that follows no partition would never end.
    Raises: InvalidCallError.
    """
    if partitions is not None and not len(partitions):
        raise InvalidCallError("partitions is empty: name some, or omit it to read the whole topic")


def _checked(what: str, bound: Bound) -> OffsetBound | datetime:
    """Check the bound, and return it with plain ints."""
    match bound:
        case None | Committed() | OffsetSpec() | FirstAt():
            return bound
        case datetime():
            return time_of(bound, what)
        case str():
            return named_or_time(bound, what, ALL_BOUNDS)
        case Mapping():
            return {key: place_of(at, f"{what[:-2]} of partition {key} =") for key, at in bound.items()}
        case SupportsIndex() if not isinstance(bound, bool):
            return offset_of(bound, what)
    raise InvalidCallError(f"{what} {bound!r}: give {ALL_BOUNDS}")


def _by_topic(name: str, bound: Mapping[object, Place], topics: Sequence[str]) -> dict[str, dict[int, Place]]:
    found: dict[str, dict[int, Place]] = {topic: {} for topic in topics}
    for key, offset in bound.items():
        match key:
            case SupportsIndex() if not isinstance(key, bool):
                if len(topics) > 1:
                    raise InvalidCallError(
                        f"{name} names partition {key}, but {len(topics)} topics are read: write it as "
                        f"({topics[0]!r}, {key})"
                    )
                found[topics[0]][whole(key, f"{name}: partition")] = offset
            case (str() as topic, SupportsIndex() as partition) if not isinstance(partition, bool):
                if topic not in found:
                    raise UnknownTopicOrPartitionError(
                        f"{name} names topic {topic!r}, which is not read{did_you_mean(topic, topics)}"
                    )
                found[topic][whole(partition, f"{name}: partition")] = offset
            case _:
                raise InvalidCallError(f"{name} names {key!r}: a partition is a number, or (topic, number)")
    return found
