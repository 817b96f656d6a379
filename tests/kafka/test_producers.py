"""Sequences of producers (KIP-98): retries and refusals. Each append has one record, so that the engine's
sequences, which count appends, equal Kafka's, which count records.
"""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import Got, Log, Trace

pytestmark = pytest.mark.kafka

OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_the_last_five_appends_may_be_retried(both: Both) -> None:
    """Each has its own offset, and nothing is stored twice."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        trace: Trace = [log.append_as(7, sequence, f"v{sequence}") for sequence in range(6)]
        trace += [log.append_as(7, sequence, f"v{sequence}") for sequence in (5, 3, 1, 2, 4)]
        return [*trace, log.append_as(7, 6, "v6"), log.read("t")]

    values = {offset: f"v{offset}" for offset in range(7)}
    assert both.same(script) == [*([o] for o in range(6)), [5], [3], [1], [2], [4], [6], Got(values, 7)]


def test_producers_and_partitions_of_topics_count_for_themselves(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.create_topic("u")
        return [
            log.append_as(7, 0, "a"),
            log.append_as(8, 0, "b"),
            log.append_as(7, 0, "c", topic="u"),
            log.append_as(8, 0, "b"),
        ]

    assert both.same(script) == [[0], [1], [0], [1]]


def test_a_producer_of_which_nothing_is_known_begins_anywhere(both: Both) -> None:
    """The appends of such a producer may have expired."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.append_as(7, 5, "a"), log.append_as(7, 5, "a"), log.append_as(7, 6, "b")]

    assert both.same(script) == [[0], [0], [1]]


def test_a_later_epoch_begins_at_zero_and_fences_the_one_before(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [
            log.append_as(7, 0, "a", epoch=0),
            log.append_as(7, 1, "b", epoch=0),
            log.append_as(7, 0, "c", epoch=1),
            log.append_as(7, 0, "c", epoch=1),
            log.append_as(7, 2, "d", epoch=0),
            log.append_as(7, 1, "b", epoch=0),
            log.append_as(7, 1, "e", epoch=1),
            log.read("t"),
        ]

    fenced = "INVALID_PRODUCER_EPOCH"
    values = {0: "a", 1: "b", 2: "c", 3: "e"}
    assert both.same(script) == [[0], [1], [2], [2], fenced, fenced, [3], Got(values, 4)]


# ---------------------------------------------------------------------- where they differ on purpose


def test_appends_older_than_the_last_five_are_known_forever(both: Both) -> None:
    """A log here finds the offsets of every earlier append, so a repeated backfill appends nothing twice. Kafka
    remembers five batches, and cannot distinguish a retry of an earlier batch from a late sequence.
    """

    def script(log: Log) -> Trace:
        log.create_topic("t")
        for sequence in range(7):
            log.append_as(7, sequence, f"v{sequence}")
        return [log.append_as(7, 0, "v0"), log.append_as(7, 1, "v1"), log.append_as(7, 2, "v2")]

    assert both.each(script) == ([[0], [1], [2]], [OUT_OF_ORDER, OUT_OF_ORDER, [2]])


def test_sequences_may_be_left_out_and_never_come_late(both: Both) -> None:
    """Sequences count appends, such as batches of a stream, and some batches have nothing for a partition. Kafka's
    sequences count records, so a missing sequence is a lost record.
    """

    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.append_as(7, 0, "a"), log.append_as(7, 2, "c"), log.append_as(7, 1, "b"), log.read("t")]

    ours, kafka = both.each(script)
    assert ours == [[0], [1], OUT_OF_ORDER, Got({0: "a", 1: "c"}, 2)]
    assert kafka == [[0], OUT_OF_ORDER, [1], Got({0: "a", 1: "b"}, 2)]


def test_other_records_under_a_sequence_are_refused(both: Both) -> None:
    """A repeated task may have other records after a bug fix. Kafka answers with the offsets of the first records,
    and drops the new ones.
    """

    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.append_as(7, 0, "a"), log.append_as(7, 0, "other"), log.read("t")]

    left = Got({0: "a"}, 1)
    assert both.each(script) == ([[0], OUT_OF_ORDER, left], [[0], [0], left])


def test_a_later_epoch_begins_with_any_sequence(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.append_as(7, 0, "a", epoch=0), log.append_as(7, 1, "b", epoch=1)]

    assert both.each(script) == ([[0], [1]], [[0], OUT_OF_ORDER])
