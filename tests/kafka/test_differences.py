"""Intentional differences between the engine and Kafka: each with both answers, and the reason."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Committed, Found, Got, Log, Trace

pytestmark = pytest.mark.kafka


def test_the_largest_timestamp_is_that_of_a_record_that_is_there(both: Both) -> None:
    """Kafka continues to answer with a deleted record, below its own log start."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["a", "b", "c"], times_ms=[LATER_MS + 9, LATER_MS + 5, LATER_MS + 7])
        trace: Trace = []
        for start in (1, 3):
            log.delete_records("t", {0: start})
            trace.append(log.list_offsets("t", At.MAX_TIMESTAMP))
        return trace

    ours, kafka = both.each(script)
    assert ours == [{0: Found(2, LATER_MS + 7)}, {0: None}]
    assert kafka == [{0: Found(0, LATER_MS + 9)}] * 2


def test_the_last_stable_offset_is_never_below_the_log_start(both: Both) -> None:
    """Kafka answers with the first offset of a batch, even if the log starts within it."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        transaction = log.transaction("x")
        transaction.append("t", ["a", "b"])
        log.delete_records("t", {0: 1})
        trace: Trace = [log.list_offsets("t", At.EARLIEST), log.list_offsets("t", At.LATEST, committed=True)]
        return [*trace, transaction.abort()]

    assert both.each(script) == ([{0: 1}, {0: 1}, None], [{0: 1}, {0: 0}, None])


def test_offsets_beyond_the_end_of_the_log_are_not_committed(both: Both) -> None:
    """No consumer can have processed records at these offsets. Kafka's coordinator does not know the log, and
    accepts any offset.
    """

    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["a"])
        return [log.commit("g", "t", {0: 2}), log.committed("g", "t")]

    assert both.each(script) == (["OFFSET_OUT_OF_RANGE", {}], [None, {0: Committed(2)}])


def test_a_commit_is_all_or_nothing(both: Both) -> None:
    """Kafka answers for each partition, and commits the valid ones."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.commit("g", "t", {0: 0, 7: 0}), log.committed("g", "t")]

    refused = "UNKNOWN_TOPIC_OR_PARTITION"
    assert both.each(script) == ([refused, {}], [refused, {0: Committed(0)}])


def test_a_deletion_of_records_is_all_or_nothing(both: Both) -> None:
    """Kafka answers for each partition, and deletes from the valid ones."""

    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        log.append("t", ["a"])
        return [log.delete_records("t", {0: 1, 1: 1}), log.list_offsets("t", At.EARLIEST)]

    refused = "OFFSET_OUT_OF_RANGE"
    assert both.each(script) == ([refused, {0: 0, 1: 0}], [refused, {0: 1, 1: 0}])


def test_the_metadata_of_an_offset_is_counted_in_bytes(both: Both) -> None:
    """The unit of offset.metadata.max.bytes is bytes. Kafka counts characters."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.commit("g", "t", {0: 0}, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 3000)]

    assert both.each(script) == (["OFFSET_METADATA_TOO_LARGE"], [None])


def test_a_group_has_a_name_of_at_most_255_characters(both: Both) -> None:
    """Kafka accepts any length."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [log.commit("g" * 256, "t", {0: 0})]

    assert both.each(script) == (["INVALID_GROUP_ID"], [None])


def test_aborting_a_transaction_that_another_driver_has_aborted_is_no_error(both: Both) -> None:
    """The result is the requested one. Kafka tells the producer that it is fenced, as at any other step."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        transaction = log.transaction("x", timeout_ms=1000)
        transaction.append("t", ["a"])
        transaction.time_out()
        return [transaction.abort(), log.read("t", committed=True)]

    rest = Got({}, 2)
    assert both.each(script) == ([None, rest], ["PRODUCER_FENCED", rest])


def test_a_transaction_that_is_taken_over_is_marked_in_all_partitions_of_a_small_topic(both: Both) -> None:
    """One record of the transaction's log adds all of the topic's partitions at once, and only the producer knows
    to which it has appended. Kafka's producers add one partition at a time.
    """

    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        log.transaction("x").append("t", ["a"])
        log.transaction("x", anew=True)
        return [log.list_offsets("t", At.LATEST)]

    assert both.each(script) == ([{0: 2, 1: 1}], [{0: 2, 1: 0}])


def test_as_many_partitions_as_there_are_is_no_error(both: Both) -> None:
    """The call may be repeated after a failure with an unknown outcome."""

    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        return [log.create_partitions("t", 2)]

    assert both.each(script) == ([None], ["INVALID_PARTITIONS"])


def test_names_of_topics_may_differ_in_a_dot_and_an_underscore_only(both: Both) -> None:
    """In Kafka the metrics of both topics would have the same names; here no metrics have such names."""

    def script(log: Log) -> Trace:
        return [log.create_topic("a.b"), log.create_topic("a_b")]

    assert both.each(script) == ([None, None], [None, "INVALID_TOPIC_EXCEPTION"])


@pytest.mark.parametrize(("key", "value"), [("retention.bytes", "-2"), ("local.retention.ms", "-1")])
def test_configs_that_mean_nothing_are_refused(both: Both, key: str, value: str) -> None:
    """Only -1 means no limit; and local retention is never above total retention, whether the topic is tiered or
    not. Kafka accepts any size, and checks local retention when a topic is tiered.
    """

    def script(log: Log) -> Trace:
        return [log.create_topic("t", configs={key: value})]

    assert both.each(script) == (["INVALID_CONFIG"], [None])


def test_old_records_stay_by_retention_and_not_by_an_empty_cleanup_policy(both: Both) -> None:
    """Kafka accepts an empty list since 4.2, which means retention.ms = -1 and retention.bytes = -1 (KIP-1161)."""

    def script(log: Log) -> Trace:
        return [log.create_topic("t", configs={"cleanup.policy": ""})]

    assert both.each(script) == (["INVALID_CONFIG"], [None])


def test_a_policy_that_is_named_twice_is_refused(both: Both) -> None:
    """Kafka ignores the second case since 4.2 (KIP-1161), so that an old config does not stop a broker."""

    def script(log: Log) -> Trace:
        return [log.create_topic("t", configs={"cleanup.policy": "delete,delete"})]

    assert both.each(script) == (["INVALID_CONFIG"], [None])
