"""Topics and their offsets for clients: Metadata, FindCoordinator, ListOffsets.

The endpoint is the only broker, and the leader of every partition; clients do not see the storage roots.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from stratalog.bridges.serve.codes import ErrorCode, error_code
from stratalog.bridges.serve.protocol import Fields, KafkaRequest, partitions_of, topics_of
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.list_offsets import position, takes_remote
from stratalog.engine.reading.look import look
from stratalog.engine.reading.positions import FirstAt, Spec
from stratalog.engine.records.groups import all_groups
from stratalog.engine.state.consumer_offsets import GroupState
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.errors import InvalidTopicError, StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from stratalog.partitions.paths import check_topic_name

NODE = 0
"""The id of the only broker."""
MAX_AGE_S = 10.0
"""The time for which a fetch reuses the metadata, as in ``tail``."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_OFFSET = -1
_TIMEOUT_S = 20.0
"""The limit of lookups of single partitions, below the timeouts of clients."""
_HALF = 2**64
_NOT_ASKED = -(2**31)
"""The value that means that authorized operations are not supported."""
_SINCE: Mapping[int, int] = {
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.LATEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LAST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version of ListOffsets that has a named position."""


class ServedMetadata:
    """The metadata of the cluster, and the endpoint's address. Thread-safe."""

    def __init__(self, metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> None:
        self.all = metadata, storage, execution, memory
        """The ports, as ``stratalog.engine.driver.opening.Ports.all``."""
        self.for_records = metadata, storage, execution.clock, memory
        """The ports of reads and appends."""
        self._metadata, self._storage, self._clock, self._memory = self.for_records
        self.address = ("", 0)
        self._lock = threading.Lock()
        self._known: ClusterImage | None = None
        self._read_s = 0.0

    def image(self, *, max_age_s: float = MAX_AGE_S) -> ClusterImage:
        """The metadata, at most a few seconds old. Raises: errors from reading it."""
        with self._lock:
            now = self._clock.monotonic_s()
            if max_age_s <= 0 or self._known is None or now - self._read_s > max_age_s:
                self._known, self._read_s = self._metadata.image(), now
            return self._known

    def image_with(self, wanted: Iterable[TopicPartition]) -> ClusterImage:
        """The metadata, at most a few seconds old; read again if one of the partitions is missing. Raises: see
        ``image``.
        """
        image = self.image()
        return image if all(has_partition(image, *key) for key in wanted) else self.image(max_age_s=0)

    def groups(self) -> tuple[Mapping[str, GroupState], Sequence[Failure]]:
        """All groups by name, and the failures of partitions that cannot be read. Raises: see ``image``."""
        return all_groups(self._storage, self._clock, self._memory, self.image(max_age_s=0))

    def topics(self, body: Fields) -> Fields:
        """Metadata; of all topics if None are named. Never creates a topic."""
        image = self.image(max_age_s=0)
        named = sorted(image.topic_ids) if body["topics"] is None else dict.fromkeys(map(_asked, body["topics"]))
        host, port = self.address
        return {
            "throttle_time_ms": 0,
            "brokers": [{"node_id": NODE, "host": host, "port": port, "rack": None}],
            "cluster_id": image.cluster_id,
            "controller_id": NODE,
            "topics": [_topic(image, name) for name in named],
            "cluster_authorized_operations": _NOT_ASKED,
        }

    def coordinator(self, body: Fields) -> Fields:
        """FindCoordinator: always this endpoint."""
        host, port = self.address
        found = {"coordinator_id": NODE, "host": host, "port": port}
        return {"throttle_time_ms": 0, "error_code": ErrorCode.NONE, "error_message": None, **found}

    def offsets(self, request: KafkaRequest) -> Fields:
        """ListOffsets: one lookup per topic and kind of position; after an error, one per partition."""
        level = isolation_level(request.body)
        wanted = {key: one["timestamp"] for key, one in partitions_of(request.body).items()}
        image = self.image_with(wanted)
        asked: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        answers: dict[TopicPartition, Fields] = {}
        for (topic, partition), time in wanted.items():
            if time < 0 and request.version < _SINCE.get(time, request.version + 1):
                answers[topic, partition] = _failed(ErrorCode.UNSUPPORTED_VERSION)
            elif has_partition(image, topic, partition):
                asked[topic, time].add(partition)
            else:
                answers[topic, partition] = _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for (topic, time), partitions in asked.items():
            found = self._positions(topic, time, sorted(partitions), level)
            answers |= {(topic, partition): answer for partition, answer in found.items()}
        return {"throttle_time_ms": 0, "topics": topics_of({key: answers[key] for key in wanted})}

    def _positions(self, topic: str, time: int, partitions: list[int], level: Isolation) -> Mapping[int, Fields]:
        try:
            spec = _spec(time)
            if spec is None:
                return {partition: _offset(_NO_OFFSET) for partition in partitions}
            _, states = look(
                self._metadata,
                self._storage,
                self._memory,
                topic,
                partitions,
                lambda seen: takes_remote(seen, spec),
            )
            answers = {}
            for state in states:
                answer = position(state, spec, level)
                time_us = answer.timestamp_us if isinstance(answer, FoundOffset) else None
                answers[state.leader.view.partition] = _offset(
                    answer.offset if isinstance(answer, FoundOffset) else _NO_OFFSET,
                    _NO_OFFSET if time_us is None else time_us // 1000,
                )
            return answers
        except StratalogError as error:
            failed = dict.fromkeys(partitions, _failed(error_code(error)))
            if len(partitions) == 1:
                return failed
            since_s = self._clock.monotonic_s()
            for one in partitions:  # the error may belong to one of them
                if self._clock.monotonic_s() - since_s < _TIMEOUT_S:
                    failed |= self._positions(topic, time, [one], level)
            return failed


def has_partition(image: ClusterImage, topic: str | None, partition: int) -> bool:
    """Whether the partition exists. Untrusted names are only looked up, never compared with all known names."""
    topic_id = image.topic_ids.get(topic or "")
    return topic_id is not None and 0 <= partition < len(image.topics[topic_id].partitions)


def missing(topic: str) -> ErrorCode:
    """The error for a missing topic: it does not exist, or its name is invalid."""
    try:
        check_topic_name(topic)
    except InvalidTopicError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def isolation_level(body: Fields) -> Isolation:
    """The isolation level of a request; older versions have none."""
    return Isolation.READ_COMMITTED if body.get("isolation_level") == 1 else Isolation.READ_UNCOMMITTED


def _asked(topic: Any) -> str | uuid.UUID:
    """The topic of a request: its name, or its id if it has no name."""
    if not isinstance(topic, Mapping):  # before version 9
        return topic or ""
    if topic["topic"] is None and "topic_id_high" in topic:
        return uuid.UUID(int=(topic["topic_id_high"] % _HALF) * _HALF + topic["topic_id_low"] % _HALF)
    return topic["topic"] or ""


def _topic(image: ClusterImage, asked: str | uuid.UUID) -> Fields:
    name, topic_id, error = None, None, ErrorCode.UNKNOWN_TOPIC_ID
    if isinstance(asked, str):
        name, topic_id, error = asked, image.topic_ids.get(asked), missing(asked)
    elif asked.hex in image.topics:
        name, topic_id = image.topics[asked.hex].name, asked.hex
    partitions = range(0 if topic_id is None else len(image.topics[topic_id].partitions))
    high, low = divmod(asked.int if isinstance(asked, uuid.UUID) else int(topic_id or "0", 16), _HALF)
    return {
        "error_code": error if topic_id is None else ErrorCode.NONE,
        "topic": name,
        "topic_id_high": _signed(high),
        "topic_id_low": _signed(low),
        "topic_authorized_operations": _NOT_ASKED,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": ErrorCode.NONE,
                "partition": partition,
                "leader": NODE,
                "leader_epoch": -1,
                "replicas": [NODE],
                "isr": [NODE],
                "offline_replicas": [],
            }
            for partition in partitions
        ],
    }


def _signed(number: int) -> int:
    """The number as a signed 64-bit number."""
    return number - _HALF if number >= _HALF // 2 else number


def _spec(time: int) -> Spec | None:
    """The position for Kafka's number: a named position, or milliseconds; None if no record can be that late."""
    if time < 0:
        return OffsetSpec(time)
    try:
        return FirstAt(_EPOCH + timedelta(milliseconds=time))
    except OverflowError:
        return None


def _offset(offset: int, time: int = _NO_OFFSET) -> Fields:
    """An offset without a leader epoch: a client would look for the epoch in its metadata, which has none here."""
    return {"error_code": ErrorCode.NONE, "timestamp": time, "offset": offset, "leader_epoch": -1}


def _failed(error: int) -> Fields:
    return {**_offset(_NO_OFFSET), "error_code": error}
