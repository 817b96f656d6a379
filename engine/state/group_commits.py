"""Checks the offsets of a group's commit, as far as possible without reading partitions. Pure.

A commit that passes can be written and read back. This matters because an unreadable record would hide the offsets
of every group in its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsIndex

from stratalog.engine.state.internal_topics import check_name
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidGroupIdError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.numbers import whole

MAX_GROUP_LENGTH = 255
_LAST_EPOCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A group's commit for a partition: everything below ``offset`` is processed."""

    offset: int
    leader_epoch: int | None = None
    """The leader epoch of the last processed record, if known."""
    metadata: str = ""
    """Any text; at most ``offset.metadata.max.bytes``."""


def check_group(group: str) -> None:
    """Check the group's name. Raises: InvalidGroupIdError."""
    check_name(group, "group", MAX_GROUP_LENGTH, InvalidGroupIdError)


def check_member_epoch(group: str, member_epoch: object) -> int:
    """The epoch as an int. Raises: InvalidCallError."""
    return whole(member_epoch, f"group {group!r}: member epoch", 0, _LAST_EPOCH)


def check_offsets(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, least: int | None = 0
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check offsets to commit, or to fetch from. Returns them as ints, sorted by topic and partition. Each offset
    must be at least ``least``; None: no limit, because the log shows which offsets are out of range.

    Raises: InvalidCallError, UnknownTopicOrPartitionError for a key that is not a partition.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidCallError(f"{offsets!r} are not offsets: write them as {{(topic, partition): offset}}")
    checked = {}
    for key, given in offsets.items():
        match key:
            case (str() as topic, number) if isinstance(number, SupportsIndex) and not isinstance(number, bool):
                partition = whole(number, f"topic {topic!r}: partition")
                checked[topic, partition] = _offset(given, f"{topic}-{partition}", least)
            case _:
                raise UnknownTopicOrPartitionError(f"{key!r} is not a partition: write it as (topic, number)")
    return dict(sorted(checked.items(), key=lambda item: item[0]))


def _offset(given: OffsetAndMetadata | int, what: str, least: int | None) -> OffsetAndMetadata:
    wanted = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
    epoch = wanted.leader_epoch
    if not isinstance(wanted.metadata, str):
        raise InvalidCallError(f"{what}: metadata {wanted.metadata!r}: give a string")
    try:
        wanted.metadata.encode()
    except UnicodeEncodeError as error:
        raise InvalidCallError(f"{what}: metadata {wanted.metadata!r} is not valid Unicode text") from error
    return OffsetAndMetadata(
        whole(wanted.offset, f"{what}: offset", least),
        None if epoch is None else whole(epoch, f"{what}: leader epoch", 0, _LAST_EPOCH),
        wanted.metadata,
    )


def check_metadata_size(offsets: Mapping[TopicPartition, OffsetAndMetadata], limit_bytes: int) -> None:
    """Check the size of the metadata. Raises: OffsetMetadataTooLargeError."""
    for (topic, partition), given in offsets.items():
        if len(given.metadata.encode()) > limit_bytes:
            raise OffsetMetadataTooLargeError(
                f"{topic}-{partition}: the metadata of its offset has more than {limit_bytes} bytes "
                "(offset.metadata.max.bytes)"
            )
