"""An append that is tried again deals its records out as at its first try, whatever the topic has become."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.operations.appending.append import append_with, in_threads
from engine.operations.appending.dealing import among_how_many
from engine.report import Report
from partitions.errors import LeaderNotAvailableError
from partitions.producers import ProducerAppend
from partitions.store import StoreCounts
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

FIRST = ProducerAppend("p", 1, 7)
"""An append that was begun when the topic had two partitions."""


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """A topic of two partitions, of which one has got what ``FIRST`` has for it."""
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    _append_a_part(live, FIRST).raise_for_failures()
    return live


def _append_a_part(live: LiveCluster, who: ProducerAppend | None) -> Report:
    context, image = live.cluster._context, live.cluster.image
    run = in_threads(context, {1: [batch(["a"])]})
    return append_with(context, image, image.topic("t"), run, who, dealt_among=2)


def dealt(live: LiveCluster, producer: str = "p", epoch: int = 1, sequence: int = 7) -> int:
    """As an append that is about to begin."""
    context, image = live.cluster._context, live.cluster.image
    return among_how_many(context, image, image.topic("t"), ProducerAppend(producer, epoch, sequence))


def test_what_was_tried_before_the_topic_grew_is_dealt_as_before(live: LiveCluster) -> None:
    live.cluster.create_partitions("t", 4)
    assert dealt(live) == 2
    live.cluster.create_partitions("t", 5)
    assert dealt(live) == 2


def test_so_is_what_was_tried_without_a_producer(live: LiveCluster) -> None:
    """Who was told of an unknown outcome names it when it is tried again."""
    context = live.cluster._context
    _append_a_part(live, None).raise_for_failures()
    before = context.unnamed_producers.take(context.new_id)
    live.cluster.create_partitions("t", 4)
    assert dealt(live, before.producer_id, before.epoch, before.sequence - 1) == 2
    assert dealt(live, before.producer_id, before.epoch, before.sequence) == 4


def test_whatever_else_is_dealt_among_all_partitions(live: LiveCluster) -> None:
    live.cluster.create_partitions("t", 4)
    assert dealt(live, sequence=8) == dealt(live, epoch=2) == dealt(live, producer="q") == 4


def test_an_append_to_partitions_that_were_given_says_nothing(live: LiveCluster) -> None:
    live.cluster.create_partitions("t", 4)
    live.append(["b"], producer="q", sequence=3).raise_for_failures()
    assert dealt(live, producer="q", epoch=0, sequence=3) == 4


def test_a_topic_that_never_grew_is_not_asked(live: LiveCluster) -> None:
    context, image = live.cluster._context, live.cluster.image
    with context.measured() as measure:
        assert among_how_many(context, image, image.topic("t"), FIRST) == 2
    assert measure.counts == StoreCounts()


def test_while_the_leader_that_knows_cannot_be_asked_nothing_is_dealt(live: LiveCluster) -> None:
    """Protocol, I3: else what it has would be appended to another partition too."""
    live.cluster.create_partitions("t", 4)
    for broker in sorted(live.isr(partition=1)):
        live.cluster.fence(broker, force=True).raise_for_failures()
    with pytest.raises(LeaderNotAvailableError, match="has no leader"):
        dealt(live)
