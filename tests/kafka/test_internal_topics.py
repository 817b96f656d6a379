"""The partition of an internal topic for a name, found by watching which partition grows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka.both import Both
from tests.kafka.log import At, Log, Trace

pytestmark = pytest.mark.kafka

NAMES = ["internal-loader", "Stra\N{LATIN SMALL LETTER SHARP S}e \N{PILE OF POO}", "polygenelubricants", "i" * 200]
"""The hash of the third name is the smallest 32-bit number, which has no absolute value in 32 bits."""
PLACES = [[17], [38], [0], [46]]


@pytest.fixture
def prefix() -> str:
    """No prefix: names are used unchanged."""
    return ""


def places(log: Log, topic: str, deed: Callable[[str], object]) -> Trace:
    """The partitions of an internal topic that grow when ``deed`` runs, one for each name."""

    def ends() -> dict[int, object]:
        found = log.list_offsets(topic, At.LATEST)
        assert isinstance(found, dict)
        return {**found}

    trace: Trace = []
    for name in NAMES:
        before = ends()
        deed(name)
        trace.append([partition for partition, end in ends().items() if end != before[partition]])
    return trace


def test_a_group_belongs_to_the_same_partition(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("internal")
        log.commit("the first makes the topic", "internal", {0: 0})
        return places(log, "__consumer_offsets", lambda name: log.commit(name, "internal", {0: 0}))

    assert both.same(script) == PLACES


def test_a_transactional_id_belongs_to_the_same_partition(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.transaction("the first makes the topic")
        return places(log, "__transaction_state", log.transaction)

    assert both.same(script) == PLACES
