"""What a group may commit, as far as it can be told without looking at any partition. Pure.

Whatever gets past here can be written and read again: a record that nobody can read would keep every group of its
partition from theirs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsIndex

from engine.state.internal_topics import check_name
from partitions.errors import (
    InvalidCallError,
    InvalidGroupIdError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
)

TopicPartition = tuple[str, int]
"""A topic's name and a partition of it."""

MAX_GROUP_LENGTH = 255
_LAST_OFFSET, _LAST_EPOCH = (1 << 63) - 1, (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """What a group commits for a partition: everything below ``offset`` is processed."""

    offset: int
    leader_epoch: int | None = None
    """Of the last record that was processed, where it is known."""
    metadata: str = ""
    """Whatever the group wants to find again; at most ``offset.metadata.max.bytes``."""


def check_group(group: str) -> None:
    """Raises: InvalidGroupIdError."""
    check_name(group, "group", MAX_GROUP_LENGTH, InvalidGroupIdError)


def check_member_epoch(group: str, member_epoch: object) -> int:
    """The epoch as a plain number. Raises: InvalidCallError."""
    return _number(member_epoch, f"group {group!r}: member epoch", _LAST_EPOCH)


def check_offsets(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What is to be committed, in plain numbers, by topic and partition in their order.

    Raises: InvalidCallError, UnknownTopicOrPartitionError for a key that is no partition.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidCallError(f"{offsets!r} says no offsets: write them as {{(topic, partition): offset}}")
    checked = {}
    for key, given in offsets.items():
        match key:
            case (str() as topic, SupportsIndex() as number) if not isinstance(number, bool):
                partition = operator.index(number)
                checked[topic, partition] = _offset(given, f"{topic}-{partition}")
            case _:
                raise UnknownTopicOrPartitionError(f"{key!r} is no partition: write it as (topic, number)")
    return dict(sorted(checked.items(), key=lambda item: item[0]))


def _offset(given: OffsetAndMetadata | int, what: str) -> OffsetAndMetadata:
    wanted = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
    epoch = wanted.leader_epoch
    if not isinstance(wanted.metadata, str):
        raise InvalidCallError(f"{what}: metadata {wanted.metadata!r}: it is a text")
    try:
        wanted.metadata.encode()
    except UnicodeEncodeError as error:
        raise InvalidCallError(f"{what}: metadata {wanted.metadata!r} is no valid Unicode text") from error
    return OffsetAndMetadata(
        _number(wanted.offset, f"{what}: offset", _LAST_OFFSET),
        None if epoch is None else _number(epoch, f"{what}: leader epoch", _LAST_EPOCH),
        wanted.metadata,
    )


def check_metadata_size(offsets: Mapping[TopicPartition, OffsetAndMetadata], limit_bytes: int) -> None:
    """Raises: OffsetMetadataTooLargeError."""
    for (topic, partition), given in offsets.items():
        if len(given.metadata.encode()) > limit_bytes:
            raise OffsetMetadataTooLargeError(
                f"{topic}-{partition}: the metadata of its offset has more than {limit_bytes} bytes "
                "(offset.metadata.max.bytes)"
            )


def _number(given: object, what: str, greatest: int) -> int:
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        number = operator.index(given)
        if 0 <= number <= greatest:
            return number
    raise InvalidCallError(f"{what} {given!r} cannot be committed: it is a number from 0 to {greatest}")
