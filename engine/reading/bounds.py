"""What a batch read is asked for: topics, and where the range of each partition begins and ends. Pure.

What is wrong with a call whatever the log holds is found here, before anything is listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex, cast

from partitions.errors import InvalidCallError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from partitions.numbers import whole
from partitions.offsets import OffsetSpec
from partitions.spelling import did_you_mean
from partitions.transactions import Isolation, isolation_of


@dataclass(frozen=True, slots=True)
class Committed:
    """How far a consumer group has come: ``start=Committed("dashboard")``. A partition for which it has committed
    nothing is at its log start.
    """

    group: str


ByPartition = Mapping[int, int | OffsetSpec] | Mapping[tuple[str, int], int | OffsetSpec]
"""By partition of the one topic, or by topic and partition."""

Bound = OffsetSpec | int | datetime | Committed | ByPartition | None
"""Where a range begins or ends, of each partition: a named position, an offset, a time (the first record at or
after it), how far a group has come, or offsets by partition; None, and a partition that is not named: the log
start, or the high watermark."""

ALL_BOUNDS = (
    "an offset, a datetime with a time zone, Committed(group), an OffsetSpec, offsets by partition, or None"
)


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A batch read, as it was asked for. Raises: InvalidCallError, OffsetOutOfRangeError for what contradicts
    itself."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    """A regular expression that the whole name of a topic matches, instead of ``topics``."""
    start: Bound = None
    end: Bound = None
    partitions: Sequence[int] | None = None
    last: int | None = None
    """So many records of each partition, those before ``end``, instead of ``start``."""
    client_rack: str | None = None
    fail_on_data_loss: bool = True
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED

    def __post_init__(self) -> None:
        if (self.pattern is None) == (not self.topics):
            raise InvalidCallError("a read takes topics, or a pattern of their names: give one of the two")
        if self.last is not None:
            if self.start is not None:
                raise InvalidCallError(f"last = {self.last} and start = {self.start!r}: give one of the two")
            object.__setattr__(self, "last", whole(self.last, "last =", 1))
        for name, bound in (("start", self.start), ("end", self.end)):
            object.__setattr__(self, name, _checked(name, bound))
        check_some(self.partitions)
        isolation_of(self.isolation)
        kinds = {kind for kind in (_kind(self.start), _kind(self.end)) if kind is not None}
        if len(kinds) > 1:
            raise InvalidCallError(
                f"start = {_said(self.start)} and end = {_said(self.end)}: give both as offsets, or both as times"
            )

    @property
    def groups(self) -> set[str]:
        """The groups whose commits it takes."""
        return {bound.group for bound in (self.start, self.end) if isinstance(bound, Committed)}

    def chosen(self, names: Collection[str], internal: Collection[str]) -> list[str]:
        """The topics that are read, each once; a pattern chooses among ``names``, and matches no internal one.

        Raises: UnknownTopicOrPartitionError when it matches none; InvalidCallError when it is none.
        """
        if self.pattern is None:
            return list(dict.fromkeys(self.topics))
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise InvalidCallError(f"pattern {self.pattern!r} is no regular expression: {error}") from error
        found = sorted(name for name in names if name not in internal and pattern.fullmatch(name))
        if not found:
            raise UnknownTopicOrPartitionError(
                f"no topic matches the pattern {self.pattern!r}{did_you_mean(self.pattern, names)}"
            )
        return found

    def check_times(self, now_ms: int) -> None:
        """Raises: InvalidCallError for a time that has not come: what is appended until then would be missing."""
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms + 1)
        for name, bound in (("start", self.start), ("end", self.end)):
            if isinstance(bound, datetime) and bound >= now:
                raise InvalidCallError(
                    f"{name} = {_said(bound)} has not come, it is {_said(now)} now: leave it out to read up to "
                    "the end"
                )

    def named(self, topics: Sequence[str]) -> dict[str, dict[str, dict[int, int | OffsetSpec]]]:
        """What is given by partition: ``start`` and ``end``, each by topic.

        Raises: InvalidCallError, UnknownTopicOrPartitionError for a key that is no partition of these topics.
        """
        return {
            name: _by_topic(name, bound, topics)
            for name, bound in (("start", self.start), ("end", self.end))
            if isinstance(bound, Mapping)
        }


def check_some(partitions: Sequence[int] | None) -> None:
    """Raises: InvalidCallError for a choice of no partitions: whoever followed them would wait for ever."""
    if partitions is not None and not len(partitions):
        raise InvalidCallError("partitions is empty: name some, or leave it out to read all of the topic")


def _checked(name: str, bound: Bound) -> Bound:
    """The bound, in plain numbers."""
    match bound:
        case None | Committed() | OffsetSpec():
            return bound
        case datetime():
            if bound.tzinfo is None:
                raise InvalidCallError(
                    f"{name} = {bound} has no time zone: give one, e.g. datetime(2013, 1, 1, tzinfo=UTC)"
                )
            return bound
        case Mapping():
            plain = {key: _offset_or_spec(f"{name} of partition {key}", at) for key, at in bound.items()}
            return cast(ByPartition, plain)
        case SupportsIndex() if not isinstance(bound, bool):
            return _offset(name, bound)
    spec = str(bound).upper().replace("-", "_")
    meant = f", OffsetSpec.{spec} is" if spec in OffsetSpec.__members__ else ""
    raise InvalidCallError(f"{name} = {bound!r} is no bound of a read{meant}: it takes {ALL_BOUNDS}")


def _offset_or_spec(what: str, given: object) -> int | OffsetSpec:
    if isinstance(given, OffsetSpec):
        return given
    if not isinstance(given, SupportsIndex) or isinstance(given, bool):
        raise InvalidCallError(f"{what} is {given!r}: an offset, or an OffsetSpec")
    return _offset(what, given)


def _offset(what: str, given: SupportsIndex) -> int:
    offset = whole(given, f"{what} =")
    if offset < 0:
        raise OffsetOutOfRangeError(
            f"{what} is {offset}: offsets begin at 0; last=n reads the last n records of each partition"
        )
    return offset


def _kind(bound: Bound) -> str | None:
    """What fits together: None fits with everything."""
    if isinstance(bound, datetime):
        return "time"
    return "offset" if isinstance(bound, int | Mapping) and not isinstance(bound, OffsetSpec) else None


def _said(bound: Bound) -> str:
    return bound.isoformat() if isinstance(bound, datetime) else repr(bound)


def _by_topic(name: str, bound: ByPartition, topics: Sequence[str]) -> dict[str, dict[int, int | OffsetSpec]]:
    found: dict[str, dict[int, int | OffsetSpec]] = {topic: {} for topic in topics}
    for key, offset in bound.items():
        match key:
            case SupportsIndex() if not isinstance(key, bool):
                if len(topics) > 1:
                    raise InvalidCallError(
                        f"{name} names partition {key}, and {len(topics)} topics are read: write it as "
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
