"""The target of an export at the boundary of librdkafka, without a broker: errors, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from stratalog.bridges.export.kafka_groups import KafkaGroups
from stratalog.bridges.export.kafka_target import open_target
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import RecordTooLargeError, StorageAuthorizationError, StratalogError

NOWHERE = "127.0.0.1:1"


def record(value: bytes) -> SourceRecord:
    return SourceRecord(0, 1_700_000_000_000, None, value, (), None)


class Answer:
    """The answer of a coordinator for a partition."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self.topic, self.partition, self.offset, self.error = "t", partition, offset, error


def test_an_unknown_commit_of_a_group_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the export would commit its own offset, and could move the group back."""
    answers = [Answer(0, 7), Answer(1, -1001)]

    class Consumer:
        def __init__(self, configs: object) -> None: ...

        def committed(self, asked: Sequence[object], timeout_s: float) -> list[Answer]:
            return answers

        def close(self) -> None: ...

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    groups = KafkaGroups({}, ManualClock())
    assert groups.committed("g", "t", 2) == {0: 7}
    answers[1] = Answer(1, -1001, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(StorageAuthorizationError, match="group 'g' of the target"):
        groups.committed("g", "t", 2)


def test_a_record_that_librdkafka_refuses_is_an_error_of_the_export() -> None:
    target = open_target(NOWHERE, {"message.max.bytes": "1000"}, ManualClock())
    with pytest.raises(RecordTooLargeError, match=r"--config message\.max\.bytes"):
        target.append("t", 0, [record(b"x" * 2000)])
    target.close()


class Producer:
    """A producer without gaps: after a record that the broker refuses it accepts no others."""

    def __init__(self, configs: object) -> None:
        self._sent: list[tuple[bytes, Callable[[Any, Any], None]]] = []
        self._ended = False

    def produce(self, topic: str, value: bytes, key: object, partition: int, done: Any, **_: object) -> None:
        if self._ended:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self._sent.append((value, done))

    def flush(self, timeout_s: float) -> int:
        for number, (value, done) in enumerate(self._sent):
            self._ended = self._ended or value == b"refused"
            error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if self._ended else None
            done(error, None if error else Message(number))
        self._sent.clear()
        return 0

    def purge(self) -> None: ...


class Message:
    def __init__(self, offset: int) -> None:
        self.partition, self.offset = lambda: 0, lambda: offset


def test_the_next_topic_is_exported_after_a_record_that_the_broker_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    target = open_target(NOWHERE, {}, ManualClock())
    assert target.append("t", 0, [record(b"a"), record(b"b")]) == [0, 1]
    with pytest.raises(StratalogError, match=r"max\.message\.bytes"):
        target.append("t", 0, [record(b"refused")])
    assert target.append("u", 0, [record(b"a")]) == [0]
