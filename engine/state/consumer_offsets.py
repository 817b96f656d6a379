"""``__consumer_offsets``: the commits of groups, as a fold over one of its partitions. Pure.

The position of a commit in the log decides whether the commit takes effect. A member's commit is ignored if an
earlier commit in the log has a greater member epoch of the group. The position also decides whether the record
that deletes a dead group takes effect. This record names the last commit that its driver has seen; if the group
has committed since, nothing is deleted. So no lock is needed between reading and appending.

A group is dead when its latest commit, for any partition, has expired: a live group keeps the offsets of idle
partitions (KIP-211).

Offsets in a transaction are pending until the end of the transaction is in this log, too (KIP-98,
"TxnOffsetCommit"). After the end, the offsets take effect if the transaction was committed, unless a later commit
for the same partition has replaced them. Like a marker, the end record has the raised producer epoch. Later
records with a smaller epoch are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.identity import TopicIdPartition


class _Tagged(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag=True,
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A tagged JSON object."""


class _OffsetsRecord(_Tagged, frozen=True, kw_only=True):
    group: str


class _ProducerRecord(_Tagged, frozen=True, kw_only=True):
    """A record about a transactional producer, for any groups."""

    producer_id: str
    producer_epoch: int


class OffsetCommit(_OffsetsRecord, frozen=True, kw_only=True):
    """A group has processed a partition up to ``offset`` (exclusive)."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    """The leader epoch of the last processed record, if the committer knows it (KIP-320)."""
    metadata: str = ""
    commit_ms: int
    expires_ms: int
    member_epoch: int | None = None
    """The epoch of the committing member; None: the committer is not a member, so the commit is never stale."""
    at: int = 0
    """The commit's offset in the log; set in the state and its snapshots, not in the log itself."""


class OffsetTombstone(_OffsetsRecord, frozen=True):
    """Delete the group's commit and pending commits for the partition unconditionally, for example because the
    topic was deleted. In the log, this record is a null value.
    """

    topic_id: str
    partition: int


class ForgetOffset(_OffsetsRecord, frozen=True):
    """Delete the group's commit for the partition, if its latest commit is still the one at ``seen``."""

    topic_id: str
    partition: int
    seen: int
    pending: bool = False
    """Whether to also delete pending offsets for the partition."""


class ForgetGroup(_OffsetsRecord, frozen=True):
    """Delete the group, if its latest commit is still the one at ``seen``."""

    seen: int
    pending: bool = False
    """Whether to also delete pending offsets of the group."""


class GroupMetadata(_OffsetsRecord, frozen=True):
    """A group without its offsets; only in snapshots, before its offsets."""

    latest_commit: int
    expires_ms: int
    member_epoch: int | None = None


class PendingOffset(_OffsetsRecord, frozen=True, kw_only=True):
    """A commit that takes effect when the transaction of this producer and epoch is committed."""

    producer_id: str
    producer_epoch: int
    commit: OffsetCommit


class EndTransaction(_ProducerRecord, frozen=True, kw_only=True):
    """The end of the producer's transactions of epochs below ``producer_epoch``. ``committed`` says whether the
    transaction of epoch ``producer_epoch - 1`` was committed.
    """

    committed: bool
    expires_ms: int
    """After this time the entry may be dropped."""


class ForgetProducer(_ProducerRecord, frozen=True, kw_only=True):
    """Drop the producer's entry, if its epoch is still ``producer_epoch``."""


class ProducerMetadata(_ProducerRecord, frozen=True, kw_only=True):
    """A producer without its pending offsets; only in snapshots, before them."""

    expires_ms: int


_OfProducers = PendingOffset | EndTransaction | ForgetProducer
OffsetsRecord = (
    OffsetCommit | OffsetTombstone | ForgetOffset | ForgetGroup | GroupMetadata | _OfProducers | (ProducerMetadata)
)


@dataclass(frozen=True, slots=True)
class GroupState:
    offsets: Mapping[TopicIdPartition, OffsetCommit]
    latest_commit: int
    """The offset in the log of the group's latest valid commit."""
    expires_ms: int
    """The time at which the last of the group's commits expires; the group then expires, too."""
    member_epoch: int | None = None
    """The greatest member epoch of the group's commits; None if no member has ever committed."""


GroupPartition = tuple[str, str, int]
"""Group, topic id and partition number."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    epoch: int
    """The epoch of the open transaction with pending offsets; without such a transaction, the epoch of the next
    transaction.
    """
    pending: Mapping[GroupPartition, OffsetCommit] = field(default_factory=dict)
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """The groups of one partition of ``__consumer_offsets`` at ``next_offset``, and the transactions that have
    offsets of these groups.
    """

    groups: Mapping[str, GroupState] = field(default_factory=dict)
    next_offset: int = 0
    producers: Mapping[str, ProducerState] = field(default_factory=dict)

    def apply(self, offset: int, records: Iterable[OffsetsRecord]) -> ConsumerOffsets:
        """The state after these records, the first of which is at ``offset``."""
        drafts: dict[str, _OffsetsDraft] = {}
        producers = dict(self.producers)
        opened = {name for name, producer in producers.items() if producer.pending}
        for record in records:
            if isinstance(record, PendingOffset):
                opened.add(record.producer_id)
            for counts in _counting(producers, offset, record):
                draft = drafts.get(counts.group)
                if draft is None:
                    draft = drafts[counts.group] = _OffsetsDraft(self.groups.get(counts.group))
                if draft.apply(offset, counts):
                    _drop_pending(producers, opened, counts)
            offset += 1
        groups = dict(self.groups)
        for name, draft in drafts.items():
            group = draft.done()
            if group is not None:
                groups[name] = group
            else:
                groups.pop(name, None)
        return ConsumerOffsets(groups, offset, producers)

    def unstable(self, group: str) -> dict[TopicIdPartition, str]:
        """The partitions for which open transactions have offsets of the group, and the producer ids of those
        transactions.
        """
        return {
            TopicIdPartition(topic_id, partition): producer_id
            for producer_id, producer in self.producers.items()
            for name, topic_id, partition in producer.pending
            if name == group
        }

    def dump(self) -> Iterator[OffsetsRecord]:
        """The records of a snapshot, in an order that depends only on the state."""
        for name, group in sorted(self.groups.items()):
            yield GroupMetadata(
                group=name,
                latest_commit=group.latest_commit,
                expires_ms=group.expires_ms,
                member_epoch=group.member_epoch,
            )
            for _, committed in sorted(group.offsets.items()):
                yield committed
        for producer_id, producer in sorted(self.producers.items()):
            yield ProducerMetadata(
                producer_id=producer_id, producer_epoch=producer.epoch, expires_ms=producer.expires_ms
            )
            for (name, _, _), held in sorted(producer.pending.items()):
                yield PendingOffset(
                    group=name, producer_id=producer_id, producer_epoch=producer.epoch, commit=held
                )

    @classmethod
    def load(cls, records: Iterable[OffsetsRecord], offset: int) -> ConsumerOffsets:
        """The state at ``offset`` from its dumped ``records``."""
        groups: dict[str, GroupState] = {}
        offsets: dict[str, dict[TopicIdPartition, OffsetCommit]] = {}
        producers: dict[str, ProducerState] = {}
        pending: dict[str, dict[GroupPartition, OffsetCommit]] = {}
        for record in records:
            match record:
                case ProducerMetadata(producer_id=name):
                    pending[name] = {}
                    producers[name] = ProducerState(record.producer_epoch, pending[name], record.expires_ms)
                case PendingOffset(producer_id=name, commit=commit) if name in pending:
                    pending[name][commit.group, commit.topic_id, commit.partition] = commit
                case GroupMetadata(group=name):
                    held = offsets[name] = {}
                    groups[name] = GroupState(held, record.latest_commit, record.expires_ms, record.member_epoch)
                case OffsetCommit(group=name) if name in offsets:
                    offsets[name][TopicIdPartition(record.topic_id, record.partition)] = record
                case _:
                    raise CorruptionError(f"a snapshot of committed offsets holds {record}, which is not a state")
        return cls(groups, offset, producers)

    def expired(self, now_ms: int | None, topic_ids: Collection[str]) -> list[OffsetsRecord]:
        """The records that delete expired groups, offsets of deleted topics (topics that are not in
        ``topic_ids``), and producers without pending offsets that have expired. (Topic ids never return;
        ``topic_ids`` must include topics created since this state.) ``now_ms`` None: the time is unknown, and
        nothing has expired.
        """
        found: list[OffsetsRecord] = [
            ForgetProducer(producer_id=name, producer_epoch=producer.epoch)
            for name, producer in sorted(self.producers.items())
            if now_ms is not None and not producer.pending and producer.expires_ms <= now_ms
        ]
        for name, group in sorted(self.groups.items()):
            if now_ms is not None and group.expires_ms <= now_ms:
                found += forget_group(name, group)
            else:
                found += (
                    OffsetTombstone(group=name, topic_id=topic_id, partition=partition)
                    for topic_id, partition in sorted(group.offsets)
                    if topic_id not in topic_ids
                )
        return found


def forget_offsets(
    name: str, group: GroupState, partitions: Iterable[TopicIdPartition], *, pending: bool = False
) -> list[OffsetsRecord]:
    """The records that delete the group's commits for these partitions if the group has not committed since it was
    read. Partitions without a commit come first: deleting the last commit deletes the group, so records after that
    would no longer match the state that was read.
    """
    return [
        ForgetOffset(group=name, topic_id=topic_id, partition=partition, seen=group.latest_commit, pending=pending)
        for topic_id, partition in sorted(partitions, key=lambda key: (key in group.offsets, key))
    ]


def forget_group(name: str, group: GroupState, *, pending: bool = False) -> list[OffsetsRecord]:
    """The records that delete the group if it has not committed since it was read. One record would be enough, but
    the snapshot policy counts a change per deleted key, so each key gets a record.
    """
    forgotten = ForgetGroup(group=name, seen=group.latest_commit, pending=pending)
    return [forgotten, *forget_offsets(name, group, group.offsets)]


_OfGroup = OffsetCommit | OffsetTombstone | ForgetOffset | ForgetGroup | GroupMetadata


def _counting(producers: dict[str, ProducerState], offset: int, record: OffsetsRecord) -> Iterable[_OfGroup]:
    """The records that take effect for groups because of the record at ``offset``: the record itself, or pending
    records. Changes ``producers``.
    """
    match record:
        case PendingOffset(producer_id=name, producer_epoch=epoch, commit=commit):
            known = producers.get(name)
            if known is None or epoch >= known.epoch:  # otherwise the transaction has already ended
                held = {} if known is None or epoch > known.epoch else known.pending
                key = commit.group, commit.topic_id, commit.partition
                pending = msgspec.structs.replace(commit, at=offset)
                producers[name] = ProducerState(epoch, {**held, key: pending})
            return ()
        case EndTransaction(producer_id=name, producer_epoch=epoch):
            known = producers.get(name)
            if known is not None and epoch <= known.epoch:
                return ()  # the end is already known
            producers[name] = ProducerState(epoch, {}, record.expires_ms)
            counts = known is not None and record.committed and known.epoch == epoch - 1
            return [held for _, held in sorted(known.pending.items())] if known is not None and counts else ()
        case ForgetProducer(producer_id=name, producer_epoch=epoch):
            known = producers.get(name)
            if known is not None and known.epoch == epoch and not known.pending:
                del producers[name]
            return ()
        case ProducerMetadata():
            raise CorruptionError(f"the log of committed offsets holds {record}, which belongs only in snapshots")
        case OffsetCommit():
            return (msgspec.structs.replace(record, at=offset),)
        case _:
            return (record,)


def _drop_pending(producers: dict[str, ProducerState], opened: Iterable[str], record: _OfGroup) -> None:
    """Remove the pending offsets that the record drops. ``opened`` are the producers that may have pending
    offsets. Changes ``producers``.
    """
    dropped: tuple[str | int, ...]
    match record:
        case OffsetTombstone() | ForgetOffset(pending=True):
            dropped = (record.group, record.topic_id, record.partition)
        case ForgetGroup(pending=True):
            dropped = (record.group,)
        case _:
            return
    for name in opened:
        producer = producers.get(name)
        if producer is not None:
            left = {key: held for key, held in producer.pending.items() if key[: len(dropped)] != dropped}
            producers[name] = replace(producer, pending=left)


class _OffsetsDraft:
    """One group during a fold; its offsets are copied once for any number of records."""

    def __init__(self, group: GroupState | None) -> None:
        self._offsets: dict[TopicIdPartition, OffsetCommit] = {} if group is None else dict(group.offsets)
        self._latest_commit = None if group is None else group.latest_commit
        self._expires_ms = 0 if group is None else group.expires_ms
        self._member_epoch = None if group is None else group.member_epoch

    def done(self) -> GroupState | None:
        """The resulting group; None when it has no state left."""
        if self._latest_commit is None:
            return None
        return GroupState(self._offsets, self._latest_commit, self._expires_ms, self._member_epoch)

    def apply(self, offset: int, record: _OfGroup) -> bool:
        """Apply a record. Returns whether it deletes something."""
        match record:
            case OffsetCommit():
                self._commit(offset, record)
                return False
            case OffsetTombstone():
                self._remove(record.topic_id, record.partition)
            case ForgetOffset(seen=seen) if seen == self._latest_commit:
                self._remove(record.topic_id, record.partition)
            case ForgetGroup(seen=seen) if seen == self._latest_commit:
                self._forget()
            case ForgetOffset() | ForgetGroup():
                return False  # the group has committed since
            case GroupMetadata():
                raise CorruptionError(
                    f"the log of committed offsets holds {record}, which belongs only in snapshots"
                )
            case _:
                assert_never(record)
        return True

    def _commit(self, offset: int, record: OffsetCommit) -> None:
        if is_stale(record.member_epoch, self._member_epoch):
            return
        key = TopicIdPartition(record.topic_id, record.partition)
        present = self._offsets.get(key)
        if present is not None and present.at > record.at:
            return  # while the commit was pending, a later commit has replaced it
        self._offsets[key] = record
        self._latest_commit = offset
        self._expires_ms = max(self._expires_ms, record.expires_ms)
        if record.member_epoch is not None:
            self._member_epoch = record.member_epoch

    def _forget(self) -> None:
        self._offsets, self._latest_commit, self._expires_ms, self._member_epoch = {}, None, 0, None

    def _remove(self, topic_id: str, partition: int) -> None:
        self._offsets.pop(TopicIdPartition(topic_id, partition), None)
        if not self._offsets and self._member_epoch is None:
            self._forget()


def is_stale(member_epoch: int | None, present: int | None) -> bool:
    """Whether a commit with this member epoch is stale in a group whose greatest member epoch is ``present``."""
    return member_epoch is not None and present is not None and member_epoch < present


# ------------------------------------------------------------------------------------- as bytes

_encoder = msgspec.json.Encoder()


def encode(record: OffsetsRecord) -> tuple[bytes, bytes | None]:
    """Key and value in the log. The key is the JSON array of the group and, for a record about one partition, its
    topic id and partition number. Later records of a key replace earlier records of the same key. The key of a
    pending commit also names the producer; a record about a producer has no group.
    """
    match record:
        case EndTransaction() | ForgetProducer() | ProducerMetadata():
            key = _encoder.encode(("", record.producer_id))
        case PendingOffset(commit=held):
            key = _encoder.encode((held.group, held.topic_id, held.partition, record.producer_id))
        case GroupMetadata() | ForgetGroup():
            key = _encoder.encode((record.group,))
        case _:
            key = _encoder.encode((record.group, record.topic_id, record.partition))
    return key, None if isinstance(record, OffsetTombstone) else _encoder.encode(record)


def decode(key: bytes | None, value: bytes | None) -> OffsetsRecord:
    """The record of a key and a value.

    Raises: CorruptionError for a key and value that are not such a record, or are of a later version.
    """
    try:
        if value is not None:
            found: OffsetsRecord = parse_json(value, OffsetsRecord)
            return found
        match parse_json(key or b"", list[str | int]):
            case [str() as group, str() as topic_id, int() as partition]:
                return OffsetTombstone(group=group, topic_id=topic_id, partition=partition)
    except ValueError as error:
        raise CorruptionError(f"not a record of committed offsets: {key!r}: {value!r} ({error})") from error
    raise CorruptionError(f"not a record of committed offsets: {key!r} without a value")
