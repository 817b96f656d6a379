"""Records for a compacted topic from a seed, appended to Kafka and to the engine alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Message, Producer

from stratalog import Cluster
from stratalog.engine.records.transact import BatchTransaction
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.records import physical_schema
from tests.kafka.kafka_clients import PRODUCER, WAIT_S, KafkaClients, wait_until
from tests.kafka.kafka_log import KafkaLog
from tests.kafka.log import LATER_MS

SEGMENT_MS = 10_000
"""``segment.ms`` of the topics. Kafka rolls by the timestamps of records."""
NO_KEY = 0.002

Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp in milliseconds, key, value and headers."""

_SCHEMA = physical_schema()


@dataclass(frozen=True, slots=True)
class Step:
    """Records that are appended together."""

    records: Sequence[Record] = ()
    transactional: bool = False
    """Whether they are part of the current transaction."""
    commit: bool | None = None
    """Commits or aborts the transaction, instead of appending records."""


class Script:
    """Steps with plain appends and transactions that overlap with them, up to a number of records. Each call
    continues at the time at which the previous one ended. The last step is a record that begins a segment in
    Kafka, and a file here.
    """

    def __init__(self, seed: int, keys: int) -> None:
        self._rng = random.Random(seed)
        self._keys = keys
        self._now_ms = LATER_MS

    def steps(self, records: int, together: int, *, keyless: bool) -> Iterator[Step]:
        """Yield steps. ``together``: the maximum number of records in one step. ``keyless``: some records have no
        key."""
        left, rng = records, self._rng
        while left > 0:
            size = min(left, rng.randint(1, together))
            left -= size
            if rng.random() < 0.6:
                yield Step(self._some(size, keyless))
                continue
            yield Step(self._some(size - size // 2, keyless), transactional=True)
            if rng.random() < 0.5:
                yield Step(self._some(max(1, size // 8), keyless))
                left -= max(1, size // 8)
            if size // 2:
                yield Step(self._some(size // 2, keyless), transactional=True)
            yield Step(transactional=True, commit=rng.random() < 0.7)
        self._now_ms += 10 * SEGMENT_MS
        yield Step(self._some(1, keyless=False))

    def _some(self, size: int, keyless: bool) -> list[Record]:
        return [self._one(keyless) for _ in range(size)]

    def _one(self, keyless: bool) -> Record:
        rng = self._rng
        self._now_ms += 1
        at_ms = self._now_ms + rng.randint(-50, 50)
        number = min(int(rng.paretovariate(0.4)) - 1, rng.randrange(self._keys))
        key = b"" if number == 3 else b"key %d" % number
        value = None if rng.random() < 0.15 else b"" if rng.random() < 0.05 else rng.randbytes(rng.randint(1, 40))
        headers: list[tuple[str, bytes | None]] = [("h", b"1"), ("h", None)] if rng.random() < 0.1 else []
        return at_ms, None if keyless and rng.random() < NO_KEY else key, value, headers


class There:
    """Partition 0 of a topic in Kafka."""

    def __init__(self, clients: KafkaClients, log: KafkaLog, topic: str) -> None:
        self._log, self._topic = log, topic
        settings = {**clients.server, **PRODUCER, "linger.ms": 5}
        self._plain = Producer(settings)
        self._transactional = Producer({**settings, "transactional.id": log.name(topic)})
        self._transactional.init_transactions(WAIT_S)
        self._open = False

    def take(self, step: Step) -> list[int]:
        """Append the step's records and return their offsets."""
        producer = self._transactional if step.transactional else self._plain
        if step.commit is not None:
            before = self._log.end(self._topic, 0)
            (producer.commit_transaction if step.commit else producer.abort_transaction)(WAIT_S)
            wait_until(lambda: self._log.end(self._topic, 0) > before)  # the marker comes after the answer
            self._open = False
            return []
        if step.transactional and not self._open:
            producer.begin_transaction()
            self._open = True
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None
            offsets.append(message.offset() or 0)

        for at_ms, key, value, headers in step.records:
            producer.produce(
                *(self._log.name(self._topic), value, key, 0),
                timestamp=at_ms,
                headers=headers,
                on_delivery=delivered,
            )
        assert producer.flush(WAIT_S) == 0
        return offsets


class Here:
    """Partition 0 of a topic of the engine."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._open: BatchTransaction | None = None

    def take(self, step: Step) -> list[int]:
        """Append the step's records and return their offsets."""
        if step.commit is not None:
            assert self._open is not None
            (self._open.commit if step.commit else self._open.abort)().raise_for_failures()
            self._open = None
            return []
        append = self._cluster.append_batches
        if step.transactional:
            self._open = self._open or self._cluster.transactions.begin(self._topic)
            append = self._open.append_batches
        (row,) = append(self._topic, {0: [_batch(step.records)]}).raise_for_failures().rows
        return list(range(int(str(row["base_offset"])), int(str(row["next_offset"]))))


def _batch(records: Sequence[Record]) -> pa.RecordBatch:
    times, keys, values, headers = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([time * 1000 for time in times], pa.int64()).cast(_SCHEMA.field("timestamp").type),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(
                [[{"key": name, "value": value} for name, value in one] or None for one in headers],
                _SCHEMA.field("headers").type,
            ),
        ],
        names=["timestamp", "key", "value", "headers"],
    )


def read_here(cluster: Cluster, topic: str, isolation: Isolation) -> dict[int, Record]:
    """All records of partition 0 by offset."""
    found: dict[int, Record] = {}
    offset = 0
    while True:
        got = cluster.fetch(topic, 0, offset, isolation=isolation)
        for row in got.records.to_pylist():
            headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
            time_ms = int(row["timestamp"].timestamp() * 1000 + 0.5)
            found[row["offset"]] = (time_ms, row["key"], row["value"], headers)
        if got.next_offset == offset:
            return found
        offset = got.next_offset
