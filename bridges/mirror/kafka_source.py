"""A Kafka cluster as the source of a mirror, by ``confluent-kafka``: librdkafka, in this process, without a JVM.

Consumers read with ``isolation.level=read_committed``: an offset below the position without a record is a marker,
part of an aborted transaction, or compacted away. The position is never reset automatically
(``auto.offset.reset=error``). If the leader epoch of the previous record is known, the consumer seeks, because
librdkafka then checks that the brokers still have that history (OffsetsForLeaderEpoch, KIP-320). On assignment it
does not. If the brokers lack the history, librdkafka reports the same error as for an offset out of range.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from stratalog.bridges.mirror.rows import (
    MOST_TIMESTAMP_MS,
    NO_RECORDS,
    NO_TIMESTAMP_MS,
    first_beyond,
    source_batch,
)
from stratalog.bridges.mirror.source import (
    MirrorSource,
    SourceBounds,
    SourceGroups,
    SourcePart,
    SourceRange,
    SourceRead,
    SourceTopic,
)
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import (
    CorruptionError,
    EnvironmentUnusableError,
    InvalidCallError,
    OffsetOutOfRangeError,
    RetriableError,
    StorageAuthorizationError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.store.address import parse_brokers, redacted

TIMEOUT_S = 30.0
_TRIES, _PAUSE_S = 3, 0.5
"""The wait for a partition whose leader moves."""
_MESSAGES = 500
"""The number of messages to take from librdkafka in one call, or those that arrive in ``_WAIT_S``."""
_WAIT_S = 0.1
_READ_RECORDS = 5000
"""The approximate size of a read, if enough records are available."""
_OURS = frozenset({"bootstrap.servers", "isolation.level", "auto.offset.reset", "group.id", "enable.auto.commit"})


class _WithoutLogins(logging.Filter):
    """Removes secrets from lines of librdkafka, which repeat the addresses in its configs."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redacted(record.getMessage()), ()
        return True


def librdkafka_log(name: str) -> logging.Logger:
    """The log for the lines of librdkafka, without secrets."""
    log = logging.getLogger(name)
    log.addFilter(_WithoutLogins(name))
    return log


_LOG = librdkafka_log("stratalog.mirror.librdkafka")


def open_source(bootstrap: str, configs: Mapping[str, str] | None = None) -> MirrorSource:
    """Open the Kafka cluster at ``host:port,...`` as a source. ``configs`` are further configs of librdkafka:
    ``security.protocol``, ``sasl.*``, ``ssl.*``.

    Raises: EnvironmentUnusableError without ``confluent-kafka``; InvalidCallError for an unknown config, or a
    config that the mirror sets itself.
    """
    parse_brokers(bootstrap, "the brokers of the Kafka cluster")
    try:
        import confluent_kafka  # noqa: F401 - an extra
    except ModuleNotFoundError as error:
        raise EnvironmentUnusableError(
            "reading a Kafka cluster needs confluent-kafka, which is not installed: pip install 'stratalog[kafka]'"
        ) from error
    if own := sorted(_OURS.intersection(configs or {})):
        raise InvalidCallError(f"do not set {own[0]}: the mirror sets it itself")
    return KafkaSource(bootstrap, configs or {})


class KafkaSource:
    """See ``stratalog.bridges.mirror.source.MirrorSource``."""

    def __init__(self, bootstrap: str, configs: Mapping[str, str]) -> None:
        """Use ``open_source``."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._bootstrap, self._given = bootstrap, dict(configs)
        self._configs = {**configs, "bootstrap.servers": bootstrap, "logger": _LOG}
        try:
            self._admin = AdminClient(self._configs)
        except KafkaException as error:
            raise InvalidCallError(f"the configs of the source: {error.args[0].str()}") from error

    def __reduce__(self) -> tuple[Callable[..., MirrorSource], tuple[str, dict[str, str]]]:
        """In another process this opens a separate connection to the same cluster."""
        return open_source, (self._bootstrap, self._given)

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import ConfigResource, ResourceType

        try:
            cluster_id = answer(self._admin.describe_cluster(request_timeout=TIMEOUT_S), "the source").cluster_id
        except StorageAuthorizationError:
            raise
        except RetriableError as error:
            raise RetriableError(
                f"no broker at {self._bootstrap} has answered within {TIMEOUT_S:g} s ({error}): check the "
                "addresses, that the brokers run, and that security.protocol is that of the brokers"
            ) from error
        described = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=TIMEOUT_S)
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in names}
        found = {name: answer(future, f"topic {name!r} of the source") for name, future in described.items()}
        configs = {
            resources[resource]: answer(future, f"configs of topic {resources[resource]!r} of the source")
            for resource, future in self._admin.describe_configs(
                list(resources), request_timeout=TIMEOUT_S
            ).items()
        }
        return {
            name: SourceTopic(
                name,
                f"{cluster_id}/{url_safe(found[name].topic_id)}",
                len(found[name].partitions),
                {key: entry.value for key, entry in configs[name].items() if entry.value is not None},
            )
            for name in names
        }

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        starts = self._offsets(keys, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        stable = self._offsets(list(starts), OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        ends = self._offsets(list(stable), OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return {
            key: SourceBounds(
                (start := starts[key].offset),
                max(start, stable[key].offset),
                max(start, ends[key].offset),
                ends[key].leader_epoch,
            )
            for key in ends
        }

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka import TopicPartition as Assigned

        only_looks = all(wanted.end - wanted.start <= 1 for wanted in ranges.values())  # only checks the history
        consumer = Consumer(
            {
                **self._configs,
                "group.id": "stratalog-mirror",  # librdkafka requires a group; nothing is ever committed under it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 1 if only_looks else 8 * 1024 * 1024,  # a broker sends a whole batch
                "queued.max.messages.kbytes": 32 * 1024,
                "queued.min.messages": 1 if only_looks else 100_000,
                "fetch.queue.backoff.ms": 10,  # in ms: a full queue is emptied long before the default of 1,000
            }
        )
        try:
            consumer.assign([Assigned(*key, wanted.start) for key, wanted in ranges.items()])
            for key, wanted in ranges.items():
                if wanted.leader_epoch is not None:
                    consumer.seek(Assigned(*key, wanted.start, leader_epoch=wanted.leader_epoch))
            positions, silent = {key: wanted.start for key, wanted in ranges.items()}, 0.0
            taken = _Taken()
            while silent < TIMEOUT_S:
                messages = consumer.consume(_MESSAGES, _WAIT_S)
                silent = 0.0 if messages else silent + _WAIT_S
                taken.add(messages)
                if len(messages) == _MESSAGES and taken.records < _READ_RECORDS:
                    continue
                for read in taken.reads():
                    positions[read.key] = read.position
                    if read.position >= ranges[read.key].end:
                        # Later records of this partition must not hide that the others are silent.
                        consumer.pause([Assigned(*read.key)])
                    yield read
                taken = _Taken()
            for key, wanted in ranges.items():
                if positions[key] < wanted.end:
                    what = f"{key[0]}-{key[1]} of the source: no records arrived for {TIMEOUT_S:g} s; try again"
                    yield SourceRead(key, NO_RECORDS, positions[key], RetriableError(what))
        except KafkaException as error:
            raise translated(error.args[0], "the source") from error
        except UnicodeDecodeError as error:
            raise _no_text("the source") from error
        finally:
            consumer.close()

    def parts(self, key: TopicPartition, wanted: SourceRange) -> Sequence[SourcePart]:
        return ()

    def notes(self) -> Sequence[str]:
        return ()

    def group_offsets(self, topics: Sequence[str]) -> SourceGroups:
        from confluent_kafka import KafkaException

        listed = answer(self._admin.list_consumer_groups(request_timeout=TIMEOUT_S), "groups of the source")
        failures: list[tuple[str, StratalogError]] = []
        for error in listed.errors:  # one error for each broker that did not answer
            why = error.args[0] if isinstance(error, KafkaException) else error
            failures.append(("consumer groups", translated(why, "groups of the source")))
        wanted, found = set(topics), {}
        for group in sorted(one.group_id for one in listed.valid):
            offsets: dict[TopicPartition, OffsetAndMetadata] = {}
            try:
                for one in self._committed(group):
                    what = f"group {group!r}, {one.topic}-{one.partition} of the source"
                    if one.topic in wanted and one.error is not None:
                        failures.append((f"group {group!r}", translated(one.error, what)))
                    elif one.topic in wanted and one.offset >= 0:
                        given = OffsetAndMetadata(one.offset, None, one.metadata or "")
                        offsets[one.topic, one.partition] = given
            except StratalogError as failed:
                failures.append((f"group {group!r}", failed))
            if offsets:
                found[group] = offsets
        return SourceGroups(found, failures)

    def _committed(self, group: str) -> Sequence[Any]:
        """Raises: one of our errors, for this group only."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        if not group:  # Kafka accepts commits of this group, but librdkafka cannot request them
            raise InvalidCallError(
                "the group with the empty id cannot be copied: its offsets remain in the source. Give its readers "
                "a named group"
            )
        asked = [ConsumerGroupTopicPartitions(group)]
        (future,) = self._admin.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S).values()
        committed: Sequence[Any] = answer(future, f"group {group!r} of the source").topic_partitions
        return committed

    def close(self) -> None:
        """The admin client ends with this object."""

    def _offsets(self, keys: Sequence[TopicPartition], spec: Any, isolation: Any) -> dict[TopicPartition, Any]:
        """The offsets with their leader epochs, for partitions whose leader answers. A second attempt finds a
        leader that has moved.
        """
        from confluent_kafka import TopicPartition as Asked

        found: dict[TopicPartition, int] = {}
        for number in range(_TRIES):
            asked = {Asked(*key): spec for key in keys if key not in found}
            if not asked:
                break
            if number:
                time.sleep(_PAUSE_S)
            answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=TIMEOUT_S)
            for one, future in answers.items():
                try:
                    found[one.topic, one.partition] = answer(future, f"{one.topic}-{one.partition} of the source")
                except StorageAuthorizationError:
                    raise
                except RetriableError:
                    continue
        return found


class _Taken:
    """Messages from librdkafka, as one list per field and partition. Python's work per record limits the speed of
    a mirror, and all of that work is here. The message objects are dropped immediately, because the garbage
    collector would traverse them again and again.
    """

    def __init__(self) -> None:
        self.records = 0
        self._fields: dict[TopicPartition, tuple[list[Any], ...]] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._failed: dict[TopicPartition, StratalogError] = {}

    def add(self, messages: Sequence[Any]) -> None:
        """Add messages. Raises: an error that belongs to no partition."""
        from confluent_kafka import KafkaError

        found: dict[TopicPartition, list[Any]] = defaultdict(list)
        for message in messages:
            error = message.error()
            key = message.topic(), message.partition()
            if error is None:
                found[key].append(message)
            elif key[0] is None:
                raise translated(error, "the source")
            elif error.code() == KafkaError._PARTITION_EOF:
                self._positions[key] = max(self._positions.get(key, 0), message.offset())
            else:
                self._failed[key] = translated(error, f"{key[0]}-{key[1]} of the source")
        for key, some in found.items():
            self._add(key, some)

    def _add(self, key: TopicPartition, messages: Sequence[Any]) -> None:
        self.records += len(messages)
        self._positions[key] = max(self._positions.get(key, 0), messages[-1].offset() + 1)
        offsets, stamps, keys, values, headers, epochs = self._fields.setdefault(key, tuple([] for _ in range(6)))
        offsets += [message.offset() for message in messages]
        times = (message.timestamp() for message in messages)
        stamps += [stamp if kind and stamp != NO_TIMESTAMP_MS else None for kind, stamp in times]
        keys += [message.key() for message in messages]
        values += [message.value() for message in messages]
        headers += [message.headers() for message in messages]
        epochs += [message.leader_epoch() for message in messages]

    def reads(self) -> Iterator[SourceRead]:
        """Removes and returns everything as reads."""
        for key, position in self._positions.items():
            fields = self._fields.get(key)
            beyond = first_beyond(fields[1]) if fields else None
            if fields is None or beyond is None:
                yield SourceRead(key, source_batch(*fields) if fields else NO_RECORDS, position)
                continue
            offset, stamp = fields[0][beyond], fields[1][beyond]
            if beyond:
                yield SourceRead(key, source_batch(*(field[:beyond] for field in fields)), offset)
            refused = InvalidCallError(
                f"{key[0]}-{key[1]} of the source: the record at offset {offset} has the timestamp {stamp} ms; "
                f"the log's limit is {MOST_TIMESTAMP_MS} ms, positive or negative, so the mirror stops before "
                "the record. Perhaps its producer used microseconds or nanoseconds. "
                "Delete the records up to this offset in the source (DeleteRecords), or mirror a copy of "
                "the topic with other timestamps"
            )
            yield SourceRead(key, NO_RECORDS, offset, refused)
        for key, why in self._failed.items():
            yield SourceRead(key, NO_RECORDS, 0, why)


def answer(future: Any, what: str) -> Any:
    """The answer to an admin client. Raises: one of our errors."""
    from concurrent.futures import TimeoutError as TooLateError

    from confluent_kafka import KafkaException

    try:
        return future.result(TIMEOUT_S + 5)
    except KafkaException as error:
        raise translated(error.args[0], what) from error
    except TooLateError as error:
        raise RetriableError(f"{what}: no answer within {TIMEOUT_S:g} s; try again") from error
    except UnicodeDecodeError as error:
        raise _no_text(what) from error


def _no_text(what: str) -> StratalogError:
    return CorruptionError(
        f"{what}: it sent a name or a header key that is not UTF-8, but brokers send only UTF-8"
    )


def translated(error: Any, what: str) -> StratalogError:
    """Converts a librdkafka error to an error of stratalog."""
    from confluent_kafka import KafkaError

    kinds: Mapping[int, Callable[[str], StratalogError]] = {
        KafkaError._AUTO_OFFSET_RESET: OffsetOutOfRangeError,
        KafkaError.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
        KafkaError.UNKNOWN_TOPIC_OR_PART: UnknownTopicOrPartitionError,
        KafkaError._UNKNOWN_TOPIC: UnknownTopicOrPartitionError,
        KafkaError._UNKNOWN_PARTITION: UnknownTopicOrPartitionError,
        KafkaError.TOPIC_AUTHORIZATION_FAILED: StorageAuthorizationError,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: StorageAuthorizationError,
        KafkaError.GROUP_AUTHORIZATION_FAILED: StorageAuthorizationError,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: StorageAuthorizationError,
        KafkaError._AUTHENTICATION: StorageAuthorizationError,
    }
    return kinds.get(error.code(), RetriableError)(f"{what}: {error.name()}: {redacted(error.str())}")


def url_safe(topic_id: Any) -> str:
    """A topic id in Kafka's notation."""
    return str(topic_id).rstrip("=").replace("+", "-").replace("/", "_")
