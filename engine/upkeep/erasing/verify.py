"""Verify an erasure: reads every byte of every copy again, and searches for the keys of a certificate.

A copy has one of three states. ``erased``: all bytes were read, and no record has one of the keys. ``not erased``.
``unknown``: the copy could not be read, or has a file that is not a log file. If the erasure did not search a
partition's log up to its end, all copies of the partition are unknown.

The certificate of a condition does not have the text of the condition. If the caller gives the text, verify also
searches for the records that the condition selects; otherwise it checks only the offsets of the certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.erasing.certificate import Certificate, ErasedPartition, ErasedTopic
from stratalog.engine.upkeep.erasing.copies import Copies, FileCopy, copies_of
from stratalog.engine.upkeep.erasing.remote_copies import remote_copies
from stratalog.engine.upkeep.erasing.verify_iceberg import ERASED, NOT_ERASED, UNKNOWN, TwinState, iceberg_states
from stratalog.engine.upkeep.erasing.verify_snapshots import SnapshotSearch
from stratalog.partitions.columns import integers_of
from stratalog.partitions.erasure import within
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.records import GAP, schema_of
from stratalog.partitions.rewrites.wanted_keys import key_digests
from stratalog.partitions.rewrites.wanted_where import WantedWhere, wanted_where, where_digest
from stratalog.partitions.segments.check import verify_bytes
from stratalog.partitions.segments.reader import read_batches, read_segment
from stratalog.partitions.store import Store

_WORST = (ERASED, UNKNOWN, NOT_ERASED)


class VerifyErasedRow(PartitionRow, frozen=True, kw_only=True):
    """A copy of a partition: the files of one broker, or the objects of the remote tier with the files of its
    Iceberg table and of the table of its snapshots."""

    broker: int | None
    """None: the remote tier."""
    state: str
    files: int
    bytes: int
    why: str | None


@dataclass(frozen=True, slots=True)
class _Work:
    """The copies of the partitions on one broker."""

    copies: Copies
    expected: Mapping[TopicIdPartition, tuple[ErasedTopic, ErasedPartition]]
    placed: frozenset[TopicIdPartition]
    """The partitions of which the broker has a replica; it may have files of other partitions, too."""
    salt: bytes
    conditions: Mapping[str, WantedWhere]
    """By topic, where the text is known."""

    def stores_used(self) -> Iterable[Store]:
        return {copy.store for copy in self.copies.found}

    def __str__(self) -> str:
        return _name(self.copies.broker)


@dataclass(slots=True)
class _CopyState:
    """The state of a copy by the files that were read so far."""

    state: str = ERASED
    files: int = 0
    bytes: int = 0
    why: str | None = None

    def add(self, copy: FileCopy, state: str, why: str | None) -> None:
        """One more file."""
        self.files += 1
        self.bytes += copy.object.size_bytes
        if _WORST.index(state) > _WORST.index(self.state):
            self.state, self.why = state, f"{copy.object.name}: {why}"

    def add_twin(self, twin: TwinState | None) -> None:
        """The Iceberg table of the remote copy."""
        if twin is None:
            return
        self.files += twin.files
        if _WORST.index(twin.state) > _WORST.index(self.state):
            self.state, self.why = twin.state, twin.why


def verify_erased(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    certificate: Certificate,
    where: str | None = None,
) -> Report:
    """One row per copy. A copy that is not known to be erased is a failure. ``where`` is the condition of the
    erasure.

    Raises: InvalidCallError for the certificate of another cluster, or of partitions that do not exist, and for
        another condition; errors of reading the metadata.
    """
    if certificate.cluster != storage.file.cluster_id:
        raise InvalidCallError(
            f"the certificate is for cluster {certificate.cluster!r}, but the open cluster is "
            f"{storage.file.cluster_id!r}: open {certificate.cluster!r}"
        )
    expected = {
        TopicIdPartition(topic.topic_id, one.partition): (topic, one)
        for topic in certificate.topics
        for one in topic.partitions
    }
    topic_ids = {topic.topic_id for topic in certificate.topics}
    with execution.run("verify --erased") as run:
        image = metadata.image()
        run.notes += _unproven(certificate)
        _check_partitions(image, expected)
        conditions = _conditions(image, certificate, where)
        for topic in certificate.topics:
            if topic.topic_id not in image.topics:
                run.notes.append(f"topic {topic.topic!r} was deleted: its folders are checked")
            if topic.where is not None and topic.topic_id not in conditions:
                run.notes.append(
                    f"topic {topic.topic!r}: the certificate has no text of the condition, so only its offsets "
                    "are checked: give the condition to search for its records"
                )
            elif not topic.key_digests and topic.where is None:
                run.notes.append(
                    f"topic {topic.topic!r}: the certificate names no keys, so only its offsets are checked"
                )
        works = [
            _Work(
                copies,
                expected,
                _placed_on(image, copies.broker, expected),
                bytes.fromhex(certificate.salt),
                conditions,
            )
            for copies in copies_of(storage, image, topic_ids, execution.clock)
        ]
        works += [
            _Work(copies, expected, frozenset([key]), bytes.fromhex(certificate.salt), conditions)
            for key, copies in remote_copies(storage, certificate.topics, execution.clock)
        ]
        looked = sorted(run.each(_look, works, unit="copies"), key=_place)
        twins = iceberg_states(storage, image, certificate.topics)
        for work, states in looked:
            copies = work.copies
            for key, state in sorted(states.items()):
                topic, _ = expected[key]
                if copies.broker is None:
                    state.add_twin(twins.pop(key, None))
                run.add(
                    [
                        VerifyErasedRow(
                            topic=topic.topic,
                            partition=key.partition,
                            broker=copies.broker,
                            state=state.state,
                            files=state.files,
                            bytes=state.bytes,
                            why=state.why,
                        )
                    ]
                )
                if state.state != ERASED:
                    item = f"{topic.topic}-{key.partition}: {_name(copies.broker)}"
                    run.failures.append(
                        Failure(item, state.state.upper().replace(" ", "_"), state.why or state.state)
                    )
            run.failures += [Failure(str(work), "UNKNOWN", why) for why in _unknown_of(copies)]
        for key, twin in twins.items():  # the remote tier has no objects of the topic
            if twin.state != ERASED:
                item = f"{expected[key][0].topic}-{key.partition}: {_name(None)}"
                run.failures.append(Failure(item, twin.state.upper().replace(" ", "_"), twin.why or twin.state))
    run.total("files", "bytes")
    return run.report()


def _name(broker: int | None) -> str:
    return "remote tier" if broker is None else f"broker {broker}"


def _place(looked: tuple[_Work, object]) -> tuple[bool, int]:
    """Sorts brokers before the remote tier."""
    broker = looked[0].copies.broker
    return broker is None, broker or 0


def _check_partitions(image: ClusterImage, keys: Iterable[TopicIdPartition]) -> None:
    """Raises: InvalidCallError for a partition that a present topic does not have."""
    for key in keys:
        topic = image.topics.get(key.topic_id)
        if topic is not None and not 0 <= key.partition < len(topic.partitions):
            raise InvalidCallError(
                f"the certificate names partition {key.partition} of topic {topic.name!r}, which has "
                f"{len(topic.partitions)}: this is not the certificate that `stratalog erase` wrote"
            )


def _placed_on(
    image: ClusterImage, broker: int | None, keys: Iterable[TopicIdPartition]
) -> frozenset[TopicIdPartition]:
    return frozenset(
        key for key in keys if key.topic_id in image.topics and broker in image.partition(*key).replicas
    )


def _look(work: _Work) -> dict[TopicIdPartition, _CopyState]:
    """The task: the state of each partition on the broker."""
    copies = work.copies
    if copies.error is not None:
        return {key: _CopyState(UNKNOWN, why=f"{copies.error}") for key in work.placed}
    states = {key: _unread(work, key) for key in work.placed}
    for copy in copies.found:
        if copy.key in work.expected:
            state, why = _state_of(copy, work)
            states.setdefault(copy.key, _unread(work, copy.key)).add(copy, state, why)
    return states


def _unproven(certificate: Certificate) -> list[str]:
    """A note that names the partitions for which the certificate is incomplete, and so proves nothing."""
    if certificate.whole:
        return []
    names = [
        f"{topic.topic}-{one.partition}"
        for topic in certificate.topics
        for one in topic.partitions
        if one.not_erased
    ]
    return [
        f"the certificate is incomplete, and proves nothing about {', '.join(names)}: erase again with the keys "
        "to get a complete one"
    ]


def _unknown_of(copies: Copies) -> list[str]:
    """The reasons why a broker may have content other than the files that were read."""
    if copies.error is not None:
        return [f"it cannot be searched: {copies.error}"]
    if not copies.unfinished:
        return []
    return [f"{copies.unfinished} unfinished files of writers have no name yet, and may have erased records"]


def _conditions(image: ClusterImage, certificate: Certificate, where: str | None) -> dict[str, WantedWhere]:
    """The condition of each topic that has one, by topic id. Only for topics that still exist, because their
    schemas are known.

    Raises: InvalidCallError for a text that is not the condition of the certificate.
    """
    if where is None:
        return {}
    found = {}
    for topic in certificate.topics:
        if topic.where is None or topic.where.digest != where_digest(where, bytes.fromhex(certificate.salt)):
            raise InvalidCallError(
                f"the certificate was not made for this condition on topic {topic.topic!r}: give exactly the "
                "condition that you gave to `stratalog erase`"
            )
        if topic.topic_id in image.topics:
            present = image.topics[topic.topic_id]
            schema = schema_of(present.key_schema, present.value_schema)
            found[topic.topic_id] = wanted_where(where, schema, f"topic {topic.topic!r}", None, topic.before_us)
    return found


def _unread(work: _Work, key: TopicIdPartition) -> _CopyState:
    """A copy before any of its files was read."""
    topic, expected = work.expected[key]
    if (topic.key_digests or topic.where is not None) and not expected.searched:
        why = "the erasure did not search this partition's log up to its end"
    elif topic.where is not None and topic.topic_id not in work.conditions and not expected.offsets:
        return _CopyState(
            UNKNOWN,
            why="the certificate names no offsets of this partition, and lacks the text of its condition: "
            "give the text",
        )
    elif topic.where is None and not topic.key_digests and not expected.offsets:
        why = "the certificate names neither keys nor offsets of this partition"
    else:
        return _CopyState()
    left = "".join(f" ({one.where}: {one.why})" for one in expected.not_erased[:1])
    return _CopyState(UNKNOWN, why=f"{why}{left}: erase again with the keys")


def _state_of(copy: FileCopy, work: _Work) -> tuple[str, str | None]:
    topic, expected = work.expected[copy.key]
    condition = work.conditions.get(topic.topic_id)
    if copy.snapshot:
        return SnapshotSearch(topic, condition, work.salt).state_of_file(copy, expected)
    if copy.published is not None:
        return SnapshotSearch(topic, condition, work.salt).state_of_published(copy, expected)
    if copy.file is None:
        return UNKNOWN, copy.why
    try:
        verify_bytes(copy.store, copy.file)
        footer = read_segment(copy.store, copy.file).footer
        start, end = footer.base_offset, footer.next_offset
        digests = frozenset(topic.key_digests)
        for batch in read_batches(copy.store, copy.file, start, end, ["offset", "key", "control", "timestamp"]):
            offsets = integers_of(batch.column("offset"))
            first = int(offsets[0])
            gone = within(expected.offsets, first, first + len(offsets))
            control = batch.column("control").to_pylist() if gone else []
            for low, high in gone:
                for offset in range(max(low, first), min(high, first + len(offsets))):
                    if control[offset - first] != GAP:
                        return NOT_ERASED, f"offset {offset} has a record"
            if topic.where is not None:  # the condition and the keys, or the offsets alone
                continue
            found = _found(batch, digests, work.salt, topic.before_us, expected.looked_to)
            if found is not None:
                return NOT_ERASED, f"offset {found} has a record of an erased key"
        if condition is not None:
            for number in condition.offsets_in(copy.store, copy.file, start, min(end, expected.looked_to)):
                if _has_key(copy, number, digests, work.salt):
                    return NOT_ERASED, f"offset {number} has a record that the condition selects"
    except StratalogError as error:
        return UNKNOWN, f"{error}"
    return ERASED, None


def _has_key(copy: FileCopy, offset: int, digests: frozenset[str], salt: bytes) -> bool:
    """Whether the record has one of the keys, if any are named."""
    if not digests:
        return True
    assert copy.file is not None
    batches = read_batches(copy.store, copy.file, offset, offset + 1, ["offset", "key"])
    return any(not digests.isdisjoint(key_digests(batch.column("key"), salt)) for batch in batches)


def _found(
    batch: pa.RecordBatch, digests: frozenset[str], salt: bytes, before_us: int | None, looked_to: int
) -> int | None:
    """The first offset below ``looked_to`` with one of the keys; later records were appended after the erasure."""
    if not digests:
        return None
    held = pc.and_(pc.is_valid(batch.column("key")), pc.less(batch.column("offset"), looked_to))
    if before_us is not None:
        times = pc.fill_null(batch.column("timestamp").cast(pa.int64()), -(1 << 62))
        held = pc.and_(held, pc.less(times, before_us))
    rows = batch.select(["offset", "key"]).filter(held)
    for offset, digest in zip(
        rows.column("offset").to_pylist(), key_digests(rows.column("key"), salt), strict=True
    ):
        if digest in digests:
            return int(offset)
    return None
