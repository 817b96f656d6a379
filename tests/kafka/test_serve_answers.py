"""A broker of Kafka answers as ``tests/bridges/test_serve_answers.py`` expects it of ``cluster.serve``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic

from stratalog.bridges.serve.protocol import ApiKey
from tests.bridges.answers_harness import COMMITTED, GROUP, TOPIC, cases
from tests.bridges.endpoint_harness import Wire, wire
from tests.kafka.kafka_clients import KafkaClients, only, produce, wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def answers(clients: KafkaClients) -> Iterator[dict[str, object]]:
    """The broker's answers, keyed by case."""
    topic = NewTopic(TOPIC, 2, config={"retention.ms": "-1"})
    only(clients.admin.create_topics([topic]))
    produce(clients.producer, TOPIC, ["a", "a", "a"], 0, [1000, 2000, 3000])
    host, port = clients.address.split(":")
    with wire((host, int(port))) as client:
        wait_until(lambda: _has_committed(client))
        yield {case.name: case.ask(client) for case in cases()}
    only(clients.admin.delete_topics([TOPIC]))


def _has_committed(client: Wire) -> bool:
    """Commit; the coordinator may not be available yet."""
    found = client.ask(ApiKey.FIND_COORDINATOR, 1, coordinator_key=GROUP, coordinator_type=0)
    if found["error_code"]:
        return False
    answer = client.ask(COMMITTED.key, COMMITTED.version, **COMMITTED.fields)
    return all(one["error_code"] == 0 for topic in answer["topics"] for one in topic["partitions"])


@pytest.mark.parametrize(("name", "expected"), [(case.name, case.expected) for case in cases()])
def test_a_broker_of_kafka_answers_so(name: str, expected: object, answers: dict[str, object]) -> None:
    assert answers[name] == expected
