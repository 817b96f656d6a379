"""The answer to an append whose producer and sequence were appended before (protocol, I3 and I11): for this
attempt, for all attempts, and never more than is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from stratalog import Cluster, OperationFailedError
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import physical_schema, type_to_json
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import SCHEMA, batch

REFUSED = "OUT_OF_ORDER_SEQUENCE_NUMBER"


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path)
    made.topic(partitions=2)
    return made


def append(
    live: LiveCluster, sequence: int, *values: str, driver: Cluster | None = None, **options: Any
) -> Report:
    """The report of an append, by default by a driver that knows nothing of others. ``1:b`` is for partition 1."""
    batches: dict[int, list[pa.RecordBatch]] = {}
    for value in values:
        partition = int(value[0]) if value[1:2] == ":" else 0
        batches.setdefault(partition, []).append(batch([value], timestamp_us=5))
    return (driver or live.driver()).append_batches(
        "t", batches, producer="p", sequence=sequence, **{"check": False, **options}
    )


def outcomes(report: Report) -> dict[Any, Any]:
    return {row["partition"]: row["outcome"] for row in report.rows}


def codes(report: Report) -> set[str]:
    return {failure.code for failure in report.failures}


def refused(live: LiveCluster, sequence: int, *values: str, **options: Any) -> Report:
    """An append that is refused by name, and stores nothing."""
    before = live.read()
    report = append(live, sequence, *values, **options)
    assert codes(report) == {REFUSED}
    assert set(outcomes(report).values()) <= {"not appended", "not tried", "duplicate"}
    assert live.read() == before
    return report


def entry(live: LiveCluster, partition: int = 0, producer: str = "p") -> ProducerEntry:
    leader = live.replicas("t", partition).leader
    return leader.producers(leader.log())[producer]


# ----------------------------------------------------------------------- the same records again


@pytest.mark.slow
def test_an_older_sequence_that_is_repeated_is_a_duplicate_and_no_failure(live: LiveCluster) -> None:
    """A scheduler repeats a month, day by day."""
    for sequence in range(20130101, 20130111):
        append(live, sequence, f"{sequence}", f"1:{sequence}").raise_for_failures()
    before = live.read()
    for sequence in range(20130101, 20130111):
        again = append(live, sequence, f"1:{sequence}", f"{sequence}").raise_for_failures()
        assert outcomes(again) == {0: "duplicate", 1: "duplicate"}
        offset = sequence - 20130101
        assert [row["base_offset"] for row in again.rows] == [offset] * 2
        assert [row["next_offset"] for row in again.rows] == [offset + 1] * 2
        assert again.totals["records"] == 2
        assert f"producer 'p', sequence {sequence} was appended before" in again.notes[-1]
    assert live.read() == before


def test_a_changed_repeat_of_an_old_sequence_is_refused_and_never_dropped(live: LiveCluster) -> None:
    """The sequence is older than the last five, whose digests are at the end of the log, so the files of the log
    decide.
    """
    for sequence in range(12):
        append(live, sequence, f"{sequence}")
    refused(live, 1, "changed")
    assert outcomes(append(live, 1, "1")) == {0: "duplicate"}


def test_an_old_sequence_that_nobody_can_compare_any_more_is_refused_as_unknown(live: LiveCluster) -> None:
    """A merge over more than five appends has deleted the deciding files. A changed repeat and an honest one look
    the same at that point: ``on_changed_replay`` decides.
    """
    for sequence in range(12):
        append(live, sequence, f"{sequence}")
    live.cluster.topics.alter_configs("t", {"segment.merge.min.files": 2})
    live.cluster.merge()
    before = live.read()
    for value in ("1", "changed"):
        with pytest.raises(OperationFailedError, match="too long ago to compare its records") as caught:
            append(live, 1, value, "1:new", check=True)
        assert codes(caught.value.report) == {"DUPLICATE_SEQUENCE_NUMBER"}
        assert outcomes(caught.value.report) == {0: "unknown", 1: "not tried"}
        assert live.read() == before
    assert outcomes(append(live, 1, "changed", on_changed_replay="accept")) == {0: "duplicate"}
    assert live.read() == before
    assert outcomes(append(live, 8, "8")) == {0: "duplicate"}


@pytest.mark.slow
def test_an_attempt_that_was_cut_short_is_completed(live: LiveCluster) -> None:
    append(live, 0, "a").raise_for_failures()
    report = append(live, 0, "a", "1:b").raise_for_failures()
    assert outcomes(report) == {0: "duplicate", 1: "acknowledged"}
    assert live.read() == {0: ["a"], 1: ["1:b"]}


def test_order_and_batches_make_no_difference(live: LiveCluster) -> None:
    append(live, 0, "a", "b", "c").raise_for_failures()
    together = [batch([value], timestamp_us=5) for value in ("c", "a", "b")]
    one = pa.Table.from_batches(together).combine_chunks().to_batches()
    report = live.driver().append_batches("t", {0: one}, producer="p", sequence=0)
    assert outcomes(report) == {0: "duplicate"}


def _without_times(value: str) -> dict[int, list[pa.RecordBatch]]:
    made = batch([value])
    stamps = pa.nulls(1, made.schema.field("timestamp").type)
    return {0: [made.set_column(made.schema.get_field_index("timestamp"), "timestamp", stamps)]}


def test_times_that_the_append_gives_do_not_count(live: LiveCluster) -> None:
    driver = live.driver()
    for at_ms in (3, 5):
        live.clock.sleep(at_ms / 1000)
        report = driver.append_batches("t", _without_times("a"), producer="p", sequence=0)
        assert report.ok
    assert outcomes(report) == {0: "duplicate"}
    live.cluster.topics.alter_configs("t", {"message.timestamp.type": "LogAppendTime"})
    for at_ms in (3, 5):
        assert live.append(["b"], at_ms=at_ms, producer="q", driver=live.driver()).ok
    live.cluster.topics.alter_configs("t", {"message.timestamp.type": "CreateTime"})
    live.append(["c"], at_ms=3, producer="r")
    assert codes(live.append(["c"], at_ms=5, producer="r")) == {REFUSED}


def test_a_record_without_a_time_gets_that_of_the_append(live: LiveCluster) -> None:
    """Kafka's producers do the same."""
    live.cluster.append_batches("t", _without_times("a")).raise_for_failures()
    leader = live.replicas().leader
    (link,) = leader.log().chain
    assert leader.footer(link.file).max_timestamp_us == live.clock.now_ms() * 1000


def _spark(kind: pa.StructType) -> StructType:
    return StructType.fromJson(json.loads(type_to_json(kind)))


def test_a_type_that_has_grown_makes_no_difference(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    narrow, wide = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
    live.cluster.topics.create("t", partitions=1, replication_factor=2, value=_spark(narrow))
    columns = {name: pa.nulls(1, physical_schema(value=narrow).field(name).type) for name in ("key", "headers")}
    stamps = pa.array([5], pa.int64()).cast(SCHEMA.field("timestamp").type)
    old = pa.record_batch({"timestamp": stamps, **columns, "value": pa.array([{"a": 1}], narrow)})
    live.cluster.append_batches("t", {0: [old]}, producer="p", sequence=0).raise_for_failures()
    live.cluster.topics.alter("t", value=_spark(wide))
    new = pa.record_batch({"timestamp": stamps, **columns, "value": pa.array([{"a": 1}], wide)})
    for same in (old, new):
        report = live.driver().append_batches("t", {0: [same]}, producer="p", sequence=0)
        assert outcomes(report) == {0: "duplicate"}


# ------------------------------------------------------------------------------ other records


@pytest.mark.parametrize(
    "values",
    [
        ("a", "b", "1:c", "1:e"),  # other records
        ("a", "b", "1:c"),  # fewer records
        ("a", "b", "1:c", "1:d", "1:d"),  # more records
        ("a", "1:b", "1:c", "1:d"),  # a record in the other partition
        ("a", "b"),  # no records for one partition
        ("x", "y", "1:x", "1:y"),
        ("1:c", "1:d"),
    ],
    ids=",".join,
)
@pytest.mark.slow
def test_the_same_sequence_with_other_records_is_refused_and_stores_nothing(
    live: LiveCluster, values: tuple[str, ...]
) -> None:
    append(live, 0, "a", "b", "1:c", "1:d").raise_for_failures()
    refused(live, 0, *values)
    append(live, 1, "e").raise_for_failures()
    refused(live, 0, *values)


@pytest.mark.parametrize("values", [("1:a",), ("b", "1:a"), ("1:x",)], ids=",".join)
def test_records_that_went_to_another_partition_are_not_appended_there(
    live: LiveCluster, values: tuple[str, ...]
) -> None:
    """That partition knows nothing of the sequence, so the partition that has it is read first."""
    append(live, 0, "a").raise_for_failures()
    refused(live, 0, *values)


def test_a_partition_that_had_no_records_of_an_append_that_is_over_gets_none(live: LiveCluster) -> None:
    """The previous append was acknowledged when sequence 1 began, and had nothing for partition 1."""
    append(live, 0, "a").raise_for_failures()
    append(live, 1, "b").raise_for_failures()
    report = refused(live, 0, "a", "1:b")
    assert outcomes(report) == {0: "duplicate", 1: "not appended"}


def test_a_repeated_older_sequence_does_not_make_the_later_ones_new(live: LiveCluster) -> None:
    """The driver itself has begun sequence 5. So a retry of it, and a late sequence 4, look at the log first, and
    store nothing in a partition that lacks them."""
    driver = live.driver()
    for sequence in (3, 5, 3):
        append(live, sequence, "a", driver=driver).raise_for_failures()
    refused(live, 5, "x", "1:y", driver=driver)
    refused(live, 4, "1:z", driver=driver)


@pytest.mark.slow
def test_a_sequence_that_was_never_appended_and_comes_too_late_is_refused(live: LiveCluster) -> None:
    """The error differs from that of an appended sequence, because the caller may then give the records another
    sequence.
    """
    for sequence in (0, 2, 9):
        append(live, sequence, f"{sequence}").raise_for_failures()
    for sequence in (1, 3, 8):
        report = refused(live, sequence, "new")
        assert "was never appended" in report.failures[0].message
        assert not any("earlier one" in note for note in report.notes)
    for sequence in (0, 2, 9):
        assert append(live, sequence, f"{sequence}").ok


def test_changed_replays_can_be_accepted(live: LiveCluster) -> None:
    """This is for records that cannot be computed again identically: the stored records stay."""
    append(live, 0, "a", on_changed_replay="accept").raise_for_failures()
    report = append(live, 0, "b", "b", "1:c", on_changed_replay="accept").raise_for_failures()
    assert outcomes(report) == {0: "duplicate", 1: "acknowledged"}
    assert live.read() == {0: ["a"], 1: ["1:c"]}
    assert entry(live).digest is None


def test_an_answer_to_changed_replays_is_that_of_a_producer(live: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="on_changed_replay is 'ignore'"):
        append(live, 0, "a", on_changed_replay="ignore")
    with pytest.raises(InvalidCallError, match="name the producer"):
        live.cluster.append_batches("t", {0: [batch(["a"])]}, on_changed_replay="accept")


def test_appends_without_a_named_producer_leave_no_digest(live: LiveCluster) -> None:
    """A digest would be in every file, and never compared."""
    live.append(["a"]).raise_for_failures()
    live.append(["b"]).raise_for_failures()
    live.cluster.topics.alter_configs(None, {"transaction.state.log.replication.factor": "2"})
    with live.cluster.transactions.begin("x") as transaction:
        transaction.append_batches("t", {0: [batch(["c"])]})
        transaction.append_batches("t", {0: [batch(["d"])]})
    leader = live.replicas().leader
    for known in leader.producers(leader.log()).values():
        assert (known.digest, known.earlier, known.runs) == (None, (), ())


# ------------------------------------------------------------------- attempts, and what is known


def test_not_appended_describes_this_attempt_only(live: LiveCluster) -> None:
    """The first attempt may be in the log: a new sequence would append it twice."""
    append(live, 0, "a").raise_for_failures()
    for broker in (1, 2, 3):
        live.cluster.brokers.fence(broker, force=True)
    report = append(live, 0, "a")
    assert outcomes(report) == {0: "not appended"}
    assert report.notes[-1] == (
        "'not appended' refers to this attempt: the next attempt will show whether an earlier attempt with "
        "producer 'p', sequence 0 succeeded"
    )
    unnamed = live.driver().append_batches("t", {0: [batch(["b"])]}, check=False)
    assert outcomes(unnamed) == {0: "not appended"}
    assert not any("attempt" in note for note in unnamed.notes), "there was no other one"


def test_a_retry_of_what_is_in_the_log_is_never_called_not_appended_while_too_few_are_in_sync(
    live: LiveCluster,
) -> None:
    """Such an append cannot be acknowledged, and is not known to be absent, either."""
    append(live, 0, "a", acks="leader").raise_for_failures()
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"})
    live.cluster.brokers.fence(live.followers()[0])
    report = append(live, 0, "a")
    assert (outcomes(report), codes(report)) == ({0: "unknown"}, {"NOT_ENOUGH_REPLICAS_AFTER_APPEND"})
    fresh = append(live, 1, "b")
    assert (outcomes(fresh), codes(fresh)) == ({0: "not appended"}, {"NOT_ENOUGH_REPLICAS"})


def test_a_sequence_that_is_too_old_to_be_remembered_has_an_unknown_outcome(live: LiveCluster) -> None:
    """Kafka's DUPLICATE_SEQUENCE_NUMBER says neither that it was appended nor that it was not."""
    live.append(["a"]).raise_for_failures()
    leader = live.replicas().leader
    (name,) = leader.producers(leader.log())
    live.append(["b"]).raise_for_failures()
    report = live.driver().append_batches("t", {0: [batch(["a"])]}, producer=name, sequence=0, check=False)
    assert (outcomes(report), codes(report)) == ({0: "unknown"}, {"DUPLICATE_SEQUENCE_NUMBER"})
    assert "it is unknown whether it appended sequence 0, which is too old" in report.failures[0].message
    assert not any("run it again" in note for note in report.notes)


def test_a_driver_that_counts_on_asks_nobody_about_earlier_attempts(live: LiveCluster) -> None:
    """The cost of a repeated sequence does not depend on how it is remembered."""
    driver = live.driver()

    def requests(sequence: int, of: Mapping[int, Sequence[pa.RecordBatch]]) -> int:
        return driver.append_batches("t", of, producer="p", sequence=sequence).raise_for_failures().counts.requests

    of = {0: [batch(["a"])]}
    named = [requests(sequence, of) for sequence in range(4)]
    unnamed = [driver.append_batches("t", of).counts.requests for _ in range(2)]
    assert named[1:] == [unnamed[1]] * 3
