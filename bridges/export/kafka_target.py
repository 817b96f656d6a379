"""A Kafka cluster as the target of an export, by ``confluent-kafka``: librdkafka, in this process, without a JVM.

There are two producers: one with the export's transactional id, for the journal, records at new offsets and gaps;
and an idempotent one without transactions, for records at the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stratalog.bridges.export.kafka_groups import KafkaGroups
from stratalog.bridges.export.target import ExportTarget, Offsets, Records
from stratalog.bridges.mirror.kafka_source import TIMEOUT_S, answer, librdkafka_log, open_source, translated
from stratalog.bridges.mirror.rows import NO_TIMESTAMP_MS
from stratalog.bridges.mirror.source import SourceBounds, SourceRange, SourceRecord, SourceTopic
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    InvalidCallError,
    ProducerFencedError,
    RecordTooLargeError,
    RetriableError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.printable import printable

_OURS = frozenset({"transactional.id", "enable.idempotence", "acks", "linger.ms", "enable.gapless.guarantee"})
_JOURNAL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_MESSAGE_TIMEOUT_MS = 10_000
_LINGER_MS = 5_000
"""``linger.ms`` of the transactional producer. A flush sends everything; until then a record can be held back."""
_JOIN_S, _LATE_S = 0.02, 0.5
"""The seconds within which a partition joins a transaction: the usual limit, and the limit while brokers still
write the markers of an earlier commit.
"""
_FILLERS = 100_000
"""The maximum number of records of one aborted transaction."""
_LARGEST = 64 * 1024 * 1024
_log = librdkafka_log("stratalog.export.librdkafka")


def open_target(bootstrap: str, configs: Mapping[str, str] | None, clock: Clock) -> ExportTarget:
    """Open the Kafka cluster at ``host:port,...`` as a target. ``configs`` are further configs of librdkafka, as
    for a mirror's source; ``message.timeout.ms`` limits the time that a record may be in flight.

    Raises: EnvironmentUnusableError without ``confluent-kafka``; InvalidCallError for an unknown config, or a
    config that the export sets itself.
    """
    given = dict(configs or {})
    if own := sorted(_OURS.intersection(given)):
        raise InvalidCallError(f"do not set {own[0]}: the export sets it itself")
    timeout = given.pop("message.timeout.ms", str(_MESSAGE_TIMEOUT_MS))
    if not timeout.isdecimal() or not 0 < int(timeout) < 60_000:
        raise InvalidCallError(f"message.timeout.ms = {timeout!r}: it must be above 0 and below 60000")
    return KafkaTarget(bootstrap, given, clock, int(timeout))


class KafkaTarget:
    """See ``stratalog.bridges.export.target.ExportTarget``."""

    def __init__(self, bootstrap: str, configs: Mapping[str, str], clock: Clock, message_timeout_ms: int) -> None:
        """Use ``open_target``."""
        self._open = partial(open_source, bootstrap, configs)
        self._reading = self._open()
        from confluent_kafka.admin import AdminClient

        self._configs = {**configs, "bootstrap.servers": bootstrap, "logger": _log}
        self._admin = AdminClient(self._configs)
        self._groups = KafkaGroups(self._configs, clock)
        self._clock = clock
        self._message_timeout_ms = message_timeout_ms
        self.settle_s = 1.5 * message_timeout_ms / 1000
        self._journal = ""
        self._producer: Any = None
        self._joins_late = True
        """Whether the coordinator may still be working on a commit. Until the commit has finished, no partition
        can join a transaction, and an abort without a partition would end the producer.
        """
        self._plain: Any = None

    def begin(self, journal: str, replication_factor: int) -> list[bytes]:
        self.create_topic(journal, 1, _JOURNAL, replication_factor)
        self._journal = journal
        self._producer = self._made(
            {
                "transactional.id": journal,
                "transaction.timeout.ms": 60_000,
                "linger.ms": _LINGER_MS,
            }
        )
        self._tried(lambda: self._producer.init_transactions(TIMEOUT_S), "begin the export")
        self._joins_late = True
        key = journal, 0
        bounds = self.bounds(journal, [0])[0]
        entries: list[bytes] = []
        if bounds.log_start < bounds.stable_end:
            reads = self._reading.read({key: SourceRange(bounds.log_start, bounds.stable_end)})
            try:
                for read in reads:
                    if read.error is not None:
                        raise read.error
                    entries += [value or b"" for value in read.records.column("value").to_pylist()]
                    if read.position >= bounds.stable_end:
                        break
            finally:
                reads.close()
        return entries

    def topic(self, name: str) -> SourceTopic | None:
        try:
            return self._reading.topics([name])[name]
        except UnknownTopicOrPartitionError:
            return None

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int
    ) -> None:
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(name, partitions, replication_factor, config=dict(configs))
        (future,) = self._admin.create_topics([wanted], request_timeout=TIMEOUT_S).values()
        self._unless(KafkaError.TOPIC_ALREADY_EXISTS, future, f"topic {name!r} of the target")
        self._until(lambda: self._has(name, 1), f"the creation of topic {name!r} in the target")

    def create_partitions(self, name: str, partitions: int) -> None:
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import NewPartitions

        (future,) = self._admin.create_partitions([NewPartitions(name, partitions)]).values()
        self._unless(KafkaError.INVALID_PARTITIONS, future, f"topic {name!r} of the target")
        self._until(
            lambda: self._has(name, partitions),
            f"the growth of topic {name!r} in the target to {partitions} partitions",
        )

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, SourceBounds]:
        found = self._reading.bounds([(topic, partition) for partition in partitions])
        for partition in partitions:
            if (topic, partition) not in found:
                what = f"{topic}-{partition} of the target"
                raise RetriableError(f"{what} has no leader, or the leader does not answer; try again")
        return {partition: bounds for (_, partition), bounds in found.items()}

    def transact(self, topic: str, records: Records, entries: Callable[[Offsets], Sequence[bytes]]) -> Offsets:
        self._tried(self._producer.begin_transaction, "begin a transaction")
        try:
            delivered = _Delivered(topic)
            for partition, some in records.items():
                self._produce(self._producer, topic, partition, some, delivered)
            self._flush(self._producer, delivered)
            journaled = _Delivered(self._journal)
            for entry in entries(delivered.offsets):
                _send(self._producer, self._journal, entry, partition=0, on_delivery=journaled)
            self._flush(self._producer, journaled)
            self._tried(lambda: self._producer.commit_transaction(TIMEOUT_S), "commit a transaction")
            self._joins_late = True
        except StratalogError as error:
            if (fenced := self._abort()) is not None:
                raise fenced from error
            raise
        return delivered.offsets

    def append(self, topic: str, partition: int, records: Sequence[SourceRecord]) -> Sequence[int]:
        if self._plain is None:
            self._plain = self._made(
                {
                    "enable.idempotence": True,
                    "enable.gapless.guarantee": True,
                    "linger.ms": 5,
                    "message.timeout.ms": self._message_timeout_ms,
                }
            )
        delivered = _Delivered(topic)
        try:
            self._produce(self._plain, topic, partition, records, delivered)
            self._flush(self._plain, delivered)
        except StratalogError:
            # A record that a broker refuses ends a producer without gaps; the next topic needs another producer.
            self._plain.purge()
            self._plain = None
            raise
        return delivered.offsets.get(partition, ())

    def take(self, topic: str, partition: int, offset: int, count: int) -> None:
        end = offset + count
        waits_s = _LATE_S if self._joins_late else _JOIN_S
        while offset < end:
            fillers = min(end - offset - 1, _FILLERS)
            self._tried(self._producer.begin_transaction, "begin a transaction")
            if fillers:
                delivered = _Delivered(topic)
                filler = SourceRecord(0, None, b"", None, (), None)
                self._produce(self._producer, topic, partition, [filler] * fillers, delivered)
                self._flush(self._producer, delivered)
            else:  # the partition joins the transaction immediately, and the record is purged before it is sent
                _send(self._producer, topic, b"", partition=partition)
                self._producer.poll(waits_s)
                waits_s *= 2
            self._tried(lambda: self._producer.abort_transaction(TIMEOUT_S), "abort a transaction")
            self._joins_late = False
            if fillers:
                offset += fillers + 1
                self._until(
                    partial(self._reaches, topic, partition, offset),
                    f"a transaction in {topic}-{partition} of the target",
                )
            elif waits_s < TIMEOUT_S:
                self._clock.sleep(waits_s)
                offset = self._end(topic, partition)
            else:
                raise RetriableError(
                    f"{topic}-{partition}: offset {offset} of the target could not be skipped; try again"
                )

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition as Asked

        asked = [Asked(topic, partition, offset) for partition, offset in offsets.items()]
        for one, future in self._admin.delete_records(asked, request_timeout=TIMEOUT_S).items():
            answer(future, f"{one.topic}-{one.partition} of the target")

    def committed(self, group: str, topic: str) -> dict[int, int]:
        there = self.topic(topic)
        return self._groups.committed(group, topic, 0 if there is None else there.partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._groups.commit(group, offsets)

    def close(self) -> None:
        self._reading.close()
        self._producer = self._plain = None

    def _made(self, own: Mapping[str, Any]) -> Any:
        """Create a producer."""
        from confluent_kafka import KafkaException, Producer

        buffers = {
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": _LARGEST,
            "batch.size": 1_000_000,
        }
        try:
            return Producer({"compression.type": "lz4", "error_cb": _log_error, **buffers, **self._configs, **own})
        except KafkaException as error:
            raise InvalidCallError(f"the configs of the target: {error.args[0].str()}") from error

    def _produce(
        self, producer: Any, topic: str, partition: int, records: Sequence[SourceRecord], delivered: _Delivered
    ) -> None:
        for record in records:
            _send(
                producer,
                topic,
                record.value,
                record.key,
                partition,
                delivered,
                timestamp=NO_TIMESTAMP_MS if record.timestamp_ms is None else record.timestamp_ms,
                headers=list(record.headers) or None,
            )

    def _flush(self, producer: Any, delivered: _Delivered) -> None:
        """Wait until all records are delivered. Raises: the error of the first record that was not delivered;
        later records are not sent.
        """
        began_s = self._clock.monotonic_s()
        left = _left(producer, delivered)
        while left and delivered.error is None and self._clock.monotonic_s() - began_s < TIMEOUT_S:
            left = _left(producer, delivered)
        if left:
            producer.purge()
        if delivered.error is not None:
            raise _translated(delivered.error, f"{delivered.topic} of the target")
        if left:
            raise RetriableError(f"{left} records got no answer within {TIMEOUT_S:g} s; try again")

    def _tried(self, act: Callable[[], object], what: str) -> None:
        from confluent_kafka import KafkaException

        try:
            act()
        except KafkaException as error:
            raise _translated(error.args[0], what) from error

    def _abort(self) -> ProducerFencedError | None:
        """Abort after an error. If this fails, the next run aborts. Returns the error if another run has begun."""
        try:
            self._tried(lambda: self._producer.abort_transaction(TIMEOUT_S), "abort a transaction")
        except ProducerFencedError as error:
            return error
        except StratalogError as error:
            _log.info("%s", error)
        return None

    def _end(self, topic: str, partition: int) -> int:
        return self.bounds(topic, [partition])[partition].log_end

    def _reaches(self, topic: str, partition: int, offset: int) -> bool:
        return self._end(topic, partition) >= offset

    def _has(self, name: str, partitions: int) -> bool:
        """Whether leaders answer for the first ``partitions`` of the topic. Raises: other errors."""
        self._reading = self._open()  # a client that asked before the topic existed caches that answer
        return len(self.bounds(name, range(partitions))) == partitions

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Poll until a condition holds. Raises: RetriableError if that takes too long."""
        began_s, why = self._clock.monotonic_s(), ""
        while True:
            try:
                if done():
                    return
            except (UnknownTopicOrPartitionError, RetriableError) as error:
                why = f" ({error})"
            if self._clock.monotonic_s() - began_s > TIMEOUT_S:
                raise RetriableError(f"{what} did not end within {TIMEOUT_S:g} s{why}; try again")
            self._clock.sleep(0.01)

    def _unless(self, fine: int, future: Any, what: str) -> None:
        """Wait for an admin request; ignores the error that means that there was nothing to do."""
        from confluent_kafka import KafkaException

        try:
            answer(future, what)
        except StratalogError as error:
            if not isinstance(error.__cause__, KafkaException) or error.__cause__.args[0].code() != fine:
                raise


class _Delivered:
    """The brokers' answers for the records of a topic: the offsets by partition, in the order of the records, and
    any error.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.offsets: dict[int, list[int]] = {}
        self.error: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        if error is None:
            self.offsets.setdefault(message.partition(), []).append(message.offset())
        elif (
            self.error is None or self.error.name() == "_INVALID_DIFFERENT_RECORD"
        ):  # the error of another record of its batch
            self.error = error


def _left(producer: Any, delivered: _Delivered) -> int:
    """Poll for a moment, and return the number of records without an answer. An error that ends the producer
    arrives before the answers that contain the reason.
    """
    from confluent_kafka import KafkaException

    try:
        return int(producer.flush(0.1))
    except KafkaException:
        try:
            return int(producer.flush(0.1))
        except KafkaException as error:
            delivered.error = delivered.error or error.args[0]
            return 0


def _log_error(error: Any) -> None:
    """Called for errors that concern no record. (Without this callback, polling would raise an error that ends the
    producer.)
    """
    _log.info("%s", printable(error.str()))


def _translated(error: Any, what: str) -> StratalogError:
    """Converts a librdkafka error of a producer to an error of stratalog."""
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
        return ProducerFencedError(f"{what}: another run of this export has begun and continues; this run ends")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLargeError(
            f"{what}: a record is larger than the topic's max.message.bytes: raise this config, and export again"
        )
    if error.code() in (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD):
        return InvalidCallError(
            f"{what} refuses a record ({error.name()}). Either the timestamp is too far from the current time for "
            "the topic's message.timestamp.after.max.ms or message.timestamp.before.max.ms: set both to "
            "9223372036854775807; or the record has no key, and the topic is compacted"
        )
    return translated(error, what)


def _send(producer: Any, topic: str, *record: Any, **more: Any) -> None:
    """Put a record into the queue of a producer, as soon as there is room. Raises: the error of a record that
    librdkafka refuses immediately, or of a producer that has ended.
    """
    from confluent_kafka import KafkaError, KafkaException

    while True:
        try:
            producer.produce(topic, *record, **more)
            return
        except BufferError:  # polling removes delivered records from the queue
            producer.poll(0.1)
        except KafkaException as error:
            what = f"{topic} of the target"
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise RecordTooLargeError(
                    f"{what}: a record is larger than the producer's message.max.bytes: raise this config "
                    "(--config message.max.bytes=N), and export again"
                ) from error
            raise _translated(error.args[0], what) from error
