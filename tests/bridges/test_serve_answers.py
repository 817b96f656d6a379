"""``cluster.serve`` answers like a broker of Kafka 4; ``tests/kafka/test_serve_answers.py`` sends the same
requests to a broker."""

from __future__ import annotations

import pytest

from tests.bridges.answers_harness import GROUP, TOPIC, cases
from tests.bridges.endpoint_harness import served, wire
from tests.unit.cluster_harness import LiveCluster


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The answers, keyed by case. The cases run in order, because some change the committed offsets."""
    live = LiveCluster(tmp_path_factory.mktemp("answers"))
    live.topic(TOPIC, partitions=2)
    for at_ms in (1000, 2000, 3000):
        live.append(["a"], at_ms=at_ms).raise_for_failures()
    live.cluster.groups.commit(GROUP, {(TOPIC, 0): 2})
    with served(live.cluster) as address, wire(address) as client:
        return {case.name: case.ask(client) for case in cases()}


@pytest.mark.parametrize(("name", "expected"), [(case.name, case.expected) for case in cases()])
def test_the_endpoint_answers_as_kafka(name: str, expected: object, answers: dict[str, object]) -> None:
    assert answers[name] == expected
