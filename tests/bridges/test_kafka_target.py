"""The target of an export at the boundary of librdkafka, without a broker: errors, and what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from stratalog.bridges.export.kafka_groups import KafkaGroups
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import StorageAuthorizationError


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
