"""Topics and their offsets as clients ask for them: Metadata, FindCoordinator, ListOffsets; and the refusal of
Produce.

The endpoint is the only broker, and the leader of every partition: which storage root leads is its own affair.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.reading.list_offsets import position, takes_remote
from stratalog.engine.reading.look import look
from stratalog.engine.reading.positions import FirstAt, Spec
from stratalog.engine.serve.codes import ErrorCode, error_code
from stratalog.engine.serve.protocol import Fields, partitions_of, topics_of
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import FoundOffset, OffsetSpec

NODE = 0
"""The id of the only broker."""
_MAX_AGE_S = 10.0
"""As of a tail: so long a fetch goes by the metadata that it knows."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_OFFSET = -1


class ServedMetadata:
    """The metadata of the cluster, which any thread may ask for; and the address at which clients find them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.address = ("", 0)
        self._lock = threading.Lock()
        self._known: ClusterImage | None = None
        self._read_s = 0.0

    def image(self, *, fresh: bool = False) -> ClusterImage:
        """The metadata, of now or a few seconds ago. Raises: errors of reading it."""
        with self._lock:
            now = self.context.clock.monotonic_s()
            if fresh or self._known is None or now - self._read_s > _MAX_AGE_S:
                self._known, self._read_s = self.context.metadata.image(), now
            return self._known

    def topics(self, body: Fields) -> Fields:
        """Metadata: of all topics when None are named. No topic is made by asking."""
        image = self.image(fresh=True)
        named = sorted(image.topic_ids) if body["topics"] is None else dict.fromkeys(body["topics"])
        host, port = self.address
        return {
            "throttle_time_ms": 0,
            "brokers": [{"node_id": NODE, "host": host, "port": port, "rack": None}],
            "cluster_id": image.cluster_id,
            "controller_id": NODE,
            "topics": [_topic(image, name) for name in named],
        }

    def coordinator(self, body: Fields) -> Fields:
        """FindCoordinator: it is here."""
        host, port = self.address
        found = {"coordinator_id": NODE, "host": host, "port": port}
        return {"throttle_time_ms": 0, "error_code": ErrorCode.NONE, "error_message": None, **found}

    def offsets(self, body: Fields) -> Fields:
        """ListOffsets: each topic is looked at once for all its partitions that ask the same."""
        image = self.image()
        level = isolation_level(body)
        asked: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        wanted = partitions_of(body)
        for (topic, partition), one in wanted.items():
            if has_partition(image, topic, partition):
                asked[topic, one["timestamp"]].add(partition)
        found = {
            (topic, partition): answer
            for (topic, time), partitions in asked.items()
            for partition, answer in self._positions(topic, time, sorted(partitions), level).items()
        }
        answers = {key: found.get(key, _UNKNOWN) for key in wanted}
        return {"throttle_time_ms": 0, "topics": topics_of(answers)}

    def _positions(self, topic: str, time: int, partitions: list[int], level: Isolation) -> Mapping[int, Fields]:
        try:
            spec = _spec(time)
            if spec is None:
                return {partition: _offset(_NO_OFFSET) for partition in partitions}
            _, states = look(self.context, topic, partitions, lambda seen: takes_remote(seen, spec))
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
            return {one: {**_offset(_NO_OFFSET), "error_code": error_code(error)} for one in partitions}


def refused(body: Fields) -> Fields:
    """Produce: in words where the version has some."""
    said = {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "offset": _NO_OFFSET,
        "timestamp": _NO_OFFSET,
        "log_start_offset": _NO_OFFSET,
        "record_errors": [],
        "error_message": "stratalog serve is read only",
    }
    return {"throttle_time_ms": 0, "topics": topics_of(dict.fromkeys(partitions_of(body), said))}


def has_partition(image: ClusterImage, topic: str | None, partition: int) -> bool:
    """Whether there is such a partition. A stranger's name is looked up, and never compared with others."""
    topic_id = image.topic_ids.get(topic or "")
    return topic_id is not None and 0 <= partition < len(image.topics[topic_id].partitions)


def isolation_level(body: Fields) -> Isolation:
    """The level of a request; older versions know none."""
    return Isolation.READ_COMMITTED if body.get("isolation_level") == 1 else Isolation.READ_UNCOMMITTED


def _topic(image: ClusterImage, name: str | None) -> Fields:
    topic_id = image.topic_ids.get(name or "")
    partitions = range(0 if topic_id is None else len(image.topics[topic_id].partitions))
    return {
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_id is None else ErrorCode.NONE,
        "topic": name or "",
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": ErrorCode.NONE,
                "partition": partition,
                "leader": NODE,
                "replicas": [NODE],
                "isr": [NODE],
                "offline_replicas": [],
            }
            for partition in partitions
        ],
    }


def _spec(time: int) -> Spec | None:
    """The question in Kafka's number: a named position, or milliseconds; None where no record can be so late."""
    if time < 0:
        return OffsetSpec(time) if time in tuple(OffsetSpec) else FirstAt(_EPOCH)
    try:
        return FirstAt(_EPOCH + timedelta(milliseconds=time))
    except OverflowError:
        return None


def _offset(offset: int, time: int = _NO_OFFSET) -> dict[str, int]:
    return {"error_code": ErrorCode.NONE, "timestamp": time, "offset": offset}


_UNKNOWN: Fields = {**_offset(_NO_OFFSET), "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
