"""``cluster.serve`` answers as a broker of Kafka 4, which ``tests/kafka/test_serve_answers.py`` asks the same."""

from __future__ import annotations

import pytest

from tests.bridges.answers_harness import GROUP, TOPIC, cases
from tests.bridges.endpoint_harness import served, wire
from tests.unit.cluster_harness import LiveCluster


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """By case: the answer. One asks after the other: some change what a group has committed."""
    live = LiveCluster(tmp_path_factory.mktemp("answers"))
    live.topic(TOPIC, partitions=2)
    for at_ms in (1000, 2000, 3000):
        live.append(["a"], at_ms=at_ms).raise_for_failures()
    live.cluster.groups.commit(GROUP, {(TOPIC, 0): 2})
    with served(live.cluster) as address, wire(address) as client:
        return {case.name: case.ask(client) for case in cases()}


@pytest.mark.parametrize(("name", "expected"), [(case.name, case.expected) for case in cases()])
def test_the_endpoint_answers_as_kafka(name: str, expected: object, told: dict[str, object]) -> None:
    assert told[name] == expected
