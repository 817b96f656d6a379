"""``__consumer_offsets``: what groups have committed, as a fold over one partition of it. Pure.

A commit is judged where it stands in the log: one by a member whose epoch is below the greatest that the group
has committed with counts for nothing, whoever wrote it and however late it came. So does an expiry that a later
commit has overtaken. Nobody has to hold a lock between the look and the append.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from partitions.errors import CorruptionError

MAX_GROUP_LENGTH = 255


class _Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag=True,
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A tagged JSON object."""


class OffsetCommit(_Record, frozen=True, kw_only=True):
    """A group has processed a partition up to ``offset`` (exclusive)."""

    group: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    """Of the last record that was processed, where the committer knows it (KIP-320)."""
    metadata: str = ""
    commit_ms: int
    expires_ms: int
    member_epoch: int | None = None
    """Of the committing member; None: not a member, never stale."""


class OffsetExpiry(_Record, frozen=True):
    """Forget what the group committed for the partition, if it has expired by ``until_ms``."""

    group: str
    topic_id: str
    partition: int
    until_ms: int


class OffsetTombstone(_Record, frozen=True):
    """Forget what the group committed for the partition: a null value in the log."""

    group: str
    topic_id: str
    partition: int


class GroupMember(_Record, frozen=True):
    """The greatest member epoch of a group; only in snapshots."""

    group: str
    member_epoch: int
    expires_ms: int


class GroupExpiry(_Record, frozen=True):
    """Forget the group's member epoch, if it has no offsets and expired by ``until_ms``."""

    group: str
    until_ms: int


OffsetsRecord = OffsetCommit | OffsetExpiry | OffsetTombstone | GroupMember | GroupExpiry

_Partition = tuple[str, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """What is known of one group."""

    offsets: Mapping[_Partition, OffsetCommit] = field(default_factory=dict)
    """By topic id and partition."""
    member_epoch: int | None = None
    """The greatest that the group has committed with; None: no member ever has."""
    expires_ms: int = 0
    """When the member epoch may be forgotten."""


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """The groups of one partition of ``__consumer_offsets``, as of ``next_offset``."""

    groups: Mapping[str, GroupState] = field(default_factory=dict)
    next_offset: int = 0

    def apply(self, offset: int, records: Iterable[OffsetsRecord]) -> ConsumerOffsets:
        """The state after these records, the first of which stands at ``offset``."""
        drafts: dict[str, _Draft] = {}
        for record in records:
            draft = drafts.get(record.group)
            if draft is None:
                draft = drafts[record.group] = _Draft(self.groups.get(record.group, _NO_GROUP))
            draft.apply(record)
            offset += 1
        changed = {name: draft.done() for name, draft in drafts.items()}
        merged = {**self.groups, **changed} if changed else self.groups
        kept = {name: group for name, group in merged.items() if group != _NO_GROUP} if changed else merged
        return ConsumerOffsets(kept, offset)

    def dump(self) -> Iterator[OffsetsRecord]:
        """The records of a snapshot, in an order that the state alone decides."""
        for name, group in sorted(self.groups.items()):
            if group.member_epoch is not None:
                yield GroupMember(group=name, member_epoch=group.member_epoch, expires_ms=group.expires_ms)
            for _, committed in sorted(group.offsets.items()):
                yield committed

    @classmethod
    def load(cls, records: Iterable[OffsetsRecord], offset: int) -> ConsumerOffsets:
        """The state as of ``offset`` that was dumped as ``records``."""
        groups: dict[str, GroupState] = {}
        offsets: dict[str, dict[_Partition, OffsetCommit]] = {}
        for record in records:
            match record:
                case GroupMember(group=name):
                    groups[name] = GroupState({}, record.member_epoch, record.expires_ms)
                case OffsetCommit(group=name):
                    offsets.setdefault(name, {})[record.topic_id, record.partition] = record
                case _:
                    raise CorruptionError(f"a snapshot of committed offsets holds {record}, which is no state")
        for name, committed in offsets.items():
            known = groups.get(name, _NO_GROUP)
            groups[name] = GroupState(committed, known.member_epoch, known.expires_ms)
        return cls(groups, offset)

    def expired(self, now_ms: int, topic_ids: Iterable[str]) -> list[OffsetsRecord]:
        """What to append to forget the offsets that have expired, and those of topics other than
        ``topic_ids``, which are gone for good. (Topic ids never come back.)
        """
        known = set(topic_ids)
        found: list[OffsetsRecord] = []
        for name, group in sorted(self.groups.items()):
            leaving = 0
            for (topic_id, partition), committed in sorted(group.offsets.items()):
                if topic_id not in known:
                    found.append(OffsetTombstone(group=name, topic_id=topic_id, partition=partition))
                elif committed.expires_ms <= now_ms:
                    found.append(OffsetExpiry(group=name, topic_id=topic_id, partition=partition, until_ms=now_ms))
                else:
                    continue
                leaving += 1
            if group.member_epoch is not None and leaving == len(group.offsets) and group.expires_ms <= now_ms:
                found.append(GroupExpiry(group=name, until_ms=now_ms))
        return found


_NO_GROUP = GroupState()


class _Draft:
    """One group in the middle of a fold; its offsets are copied once, however many records change them."""

    def __init__(self, group: GroupState) -> None:
        self._offsets = dict(group.offsets)
        self._member_epoch = group.member_epoch
        self._expires_ms = group.expires_ms

    def done(self) -> GroupState:
        return GroupState(self._offsets, self._member_epoch, self._expires_ms)

    def apply(self, record: OffsetsRecord) -> None:
        match record:
            case OffsetCommit(member_epoch=None):
                self._offsets[record.topic_id, record.partition] = record
            case OffsetCommit(member_epoch=epoch):
                if is_stale(epoch, self._member_epoch):
                    return  # it counts for nothing
                self._offsets[record.topic_id, record.partition] = record
                self._member_epoch, self._expires_ms = epoch, max(self._expires_ms, record.expires_ms)
            case OffsetExpiry():
                committed = self._offsets.get((record.topic_id, record.partition))
                if committed is not None and committed.expires_ms <= record.until_ms:
                    del self._offsets[record.topic_id, record.partition]
            case OffsetTombstone():
                self._offsets.pop((record.topic_id, record.partition), None)
            case GroupMember():
                self._member_epoch, self._expires_ms = record.member_epoch, record.expires_ms
            case GroupExpiry():
                if not self._offsets and self._expires_ms <= record.until_ms:
                    self._member_epoch, self._expires_ms = None, 0
            case _:
                assert_never(record)


def is_stale(member_epoch: int | None, present: int | None) -> bool:
    """Whether a commit with this member epoch comes too late in a group whose greatest is ``present``."""
    return member_epoch is not None and present is not None and member_epoch < present


# ------------------------------------------------------------------------------------- as bytes

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[OffsetsRecord] = msgspec.json.Decoder(OffsetsRecord)
_keys = msgspec.json.Decoder(list[str | int])


def encode(record: OffsetsRecord) -> tuple[bytes, bytes | None]:
    """Key and value in the log. The key is the JSON array of the group and, where the record is about one
    partition, its topic id and number: later records of a key take the place of earlier ones.
    """
    match record:
        case GroupMember() | GroupExpiry():
            key = _encoder.encode((record.group,))
        case _:
            key = _encoder.encode((record.group, record.topic_id, record.partition))
    return key, None if isinstance(record, OffsetTombstone) else _encoder.encode(record)


def decode(key: bytes | None, value: bytes | None) -> OffsetsRecord:
    """The record of a key and a value.

    Raises: CorruptionError for anything that is none of ours, or of a later version.
    """
    try:
        if value is not None:
            return _decoder.decode(value)
        match _keys.decode(key or b""):
            case [str() as group, str() as topic_id, int() as partition]:
                return OffsetTombstone(group=group, topic_id=topic_id, partition=partition)
    except ValueError as error:
        raise CorruptionError(f"no record of committed offsets: {key!r}: {value!r} ({error})") from error
    raise CorruptionError(f"no record of committed offsets: {key!r} without a value")
