"""Bad records: their detection, and their treatment by an append."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType

from stratalog import Cluster, OperationFailedError
from stratalog.engine.records import bad_records
from stratalog.engine.records.bad_records import (
    ERRORS,
    NO_KEY,
    PREFIX,
    TOO_LARGE,
    BadRecordFilter,
    BadRecordRule,
)
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidRecordError,
    InvalidTopicError,
    InvalidTxnStateError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.records import HEADERS, TIMESTAMP, physical_schema, schema_of, type_to_json
from tests.unit.cluster_harness import LiveCluster, codes
from tests.unit.faulty_store import Faults

VALUE = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())])),
        pa.field("tags", pa.list_(pa.field("element", pa.struct([pa.field("t", pa.string(), nullable=False)])))),
        pa.field("by", pa.map_(pa.string(), pa.struct([pa.field("m", pa.int32(), nullable=False)]))),
    ]
)


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with all fields nullable, as callers have it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_type))
    return pa.map_(kind.key_type, nullable(kind.item_type)) if pa.types.is_map(kind) else kind


def typed(*values: dict[str, Any] | None, keys: list[str | None] | None = None) -> pa.RecordBatch:
    rows = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(range(rows), pa.int64()).cast(TIMESTAMP),
            "key": pa.array(keys or [f"k{row}" for row in range(rows)], pa.string()),
            "value": pa.array(values, nullable(VALUE)),
            "headers": pa.nulls(rows, HEADERS),
        }
    )


RULE = BadRecordRule("trips", schema_of(type_to_json(pa.string()), type_to_json(VALUE)), keys_required=False)
GOOD = {"id": 1, "at": None, "tags": [None, {"t": "a"}], "by": [("k", {"m": 1}), ("l", None)]}


# ------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({**GOOD, "id": None}, "value.id"),
        ({**GOOD, "at": {"x": None, "y": 1}}, "value.at.x"),
        ({**GOOD, "tags": [{"t": "a"}, {"t": None}]}, "value.tags.element.t"),
        ({**GOOD, "by": [("k", {"m": None})]}, "value.by.value.m"),
    ],
    ids=["field", "inner", "list", "map"],
)
def test_a_null_where_none_may_be_is_found_at_every_depth(value: dict[str, Any], path: str) -> None:
    """Nulls in a slice of a batch are found, too. A null value is a record like any other."""
    batch = typed(GOOD, None, value, GOOD)
    reason = f"{path} is null, but declared NOT NULL"
    assert RULE.reasons(batch) == [None, None, reason, None]
    assert RULE.reasons(batch.slice(1, 2)) == [None, reason]
    assert RULE.reasons(batch.slice(0, 2)) is None
    assert RULE.reasons(batch.slice(0, 0)) is None


def test_a_record_without_a_key_is_bad_where_the_latest_of_each_key_is_kept() -> None:
    batch = typed(GOOD, GOOD, keys=["a", None])
    assert RULE.reasons(batch) is None
    keyed = BadRecordRule("trips", RULE.schema, keys_required=True)
    assert keyed.reasons(batch) == [None, NO_KEY]


def test_a_record_that_is_too_large_is_bad_and_its_neighbours_are_not() -> None:
    rule = BadRecordRule("trips", RULE.schema, keys_required=False, most_record_bytes=2_000)
    batch = typed(*[GOOD] * 40, {**GOOD, "tags": [{"t": "x" * 3_000}]}, GOOD)
    assert rule.reasons(batch) == [*[None] * 40, TOO_LARGE, None]
    assert rule.reasons(batch.slice(0, 40)) is None


def test_the_first_reason_counts_and_a_given_one_before_all_others() -> None:
    errors = pa.array([{"reason": None}, {"reason": "given"}], pa.struct([("reason", pa.string())]))
    batch = typed({**GOOD, "id": None}, {**GOOD, "id": None}).append_column(ERRORS, errors)
    assert RULE.reasons(batch) == ["value.id is null, but declared NOT NULL", "given"]


def test_a_filter_lets_the_good_ones_pass_in_order_and_counts_the_others() -> None:
    filtered = BadRecordFilter(
        RULE, 0, iter([typed({**GOOD, "id": None}), typed(GOOD, {**GOOD, "id": None}, {**GOOD, "id": 2})])
    )
    passed = [value["id"] for batch in filtered.good() for value in batch.column("value").to_pylist()]
    found = pickle.loads(pickle.dumps(filtered.found()))
    assert passed == [1, 2]
    assert (found.good, found.counts, found.rows) == (2, {"value.id is null, but declared NOT NULL": 2}, ())


def test_records_without_a_column_of_headers_are_kept_too() -> None:
    """The columns of a frame that the caller has not named."""
    rule = BadRecordRule("trips", RULE.schema, keys_required=False, kept=True)
    filtered = BadRecordFilter(rule, 0, iter([typed(GOOD, {**GOOD, "id": None}).drop_columns(["headers"])]))
    assert sum(batch.num_rows for batch in filtered.good()) == 1
    [kept] = filtered.found().rows
    assert [one["key"] for one in kept.column("headers")[0].as_py()] == [
        f"{PREFIX}message",
        f"{PREFIX}destination",
    ]


def test_more_than_the_driver_has_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_records, "MOST_KEPT_BYTES", 500)
    rule = BadRecordRule("trips", RULE.schema, keys_required=False, kept=True)
    many = BadRecordFilter(rule, 3, iter([typed(*[{**GOOD, "id": None}] * 20)]))
    with pytest.raises(InvalidRecordError, match=r"append to trips-3: its bad records have more than 500 bytes"):
        list(many.good())


def test_a_kept_bad_record_has_its_bytes_and_headers_that_say_why_it_was_bad() -> None:
    rule = BadRecordRule("trips", RULE.schema, keys_required=False, kept=True, more_headers=(("producer", "p"),))
    batch = typed({**GOOD, "id": None}, keys=["å"])
    batch = batch.set_column(3, "headers", pa.array([[{"key": "h", "value": b"\xff"}]], HEADERS))
    batch = bad_records.with_places(
        batch.append_column("topic", pa.array(["raw"])).append_column("offset", pa.array([17]))
    )
    filtered = BadRecordFilter(rule, 4, iter([batch]))
    assert list(filtered.good()) == []
    [kept] = filtered.found().rows
    kept.validate(full=True)
    assert kept.schema.equals(pa.schema([physical_schema().field(n) for n in kept.schema.names]))
    [row] = kept.to_pylist()
    assert row["key"] == "å".encode()
    assert json.loads(row["value"]) == {
        "id": None,
        "at": None,
        "tags": [None, {"t": "a"}],
        "by": [["k", {"m": 1}], ["l", None]],
    }
    assert [(one["key"], one["value"]) for one in row["headers"]] == [
        ("h", b"\xff"),
        (f"{PREFIX}message", b"value.id is null, but declared NOT NULL"),
        (f"{PREFIX}destination", b"trips-4"),
        (f"{PREFIX}topic", b"raw"),
        (f"{PREFIX}offset", b"17"),
        (f"{PREFIX}producer", b"p"),
    ]


# ---------------------------------------------------------------------------------- an append


def rows(*keyed: tuple[str | None, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([5] * len(keyed), pa.int64()).cast(TIMESTAMP),
            "key": pa.array([None if key is None else key.encode() for key, _ in keyed], pa.binary()),
            "value": pa.array([value.encode() for _, value in keyed], pa.binary()),
            "headers": pa.nulls(len(keyed), HEADERS),
        }
    )


BATCHES = {0: [rows(("a", "1"), (None, "bad 1"))], 1: [rows((None, "bad 2")), rows(("b", "2"))]}
ONLY_BAD = {0: [rows((None, "bad 1"))], 1: [rows((None, "bad 2"))]}


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    """A cluster with a topic that keeps the latest record of each key, and a topic for records that have
    no key.
    """
    made = LiveCluster(tmp_path, through=faults.wrap)
    made.topic(partitions=2, cleanup_policy="snapshot")
    made.topic("bad", partitions=2)
    return made


def append(cluster: Cluster, batches: dict[int, list[pa.RecordBatch]] = BATCHES, **options: Any) -> Any:
    return cluster.append_batches("t", batches, **options, check=False)


TO_TOPIC = {"on_bad_record": "topic", "bad_record_topic": "bad"}


def test_a_bad_record_refuses_its_append_and_nothing_of_it_is_written(live: LiveCluster) -> None:
    """Partitions without bad records get nothing, either: an append is never half done."""
    with live.unchanged(), pytest.raises(InvalidRecordError) as caught:
        append(live.cluster, {0: [rows(("a", "1"))], 1: [rows(("b", "2"), (None, "bad"), (None, "bad"))]})
    assert "append to t-1: record 1 of its batch, with no key: the key is null" in str(caught.value)
    assert "and 1 more" in str(caught.value)


def test_bad_records_are_left_out_and_counted_by_partition_and_reason(live: LiveCluster) -> None:
    report = append(live.cluster, on_bad_record="skip").raise_for_failures()
    assert live.read() == {0: ["1"], 1: ["2"]}
    assert (report.totals["records"], report.totals["bad_records"]) == (2, 2)
    assert [(row["partition"], row["records"], row["outcome"], row.get("reason")) for row in report.rows] == [
        (0, 1, "acknowledged", None),
        (1, 1, "acknowledged", None),
        (0, 1, "bad", NO_KEY),
        (1, 1, "bad", NO_KEY),
    ]
    assert '"bad_records": 2' in report.to_json()
    assert live.read("bad") == {}


def test_an_append_without_a_good_record_writes_nothing_but_the_report(live: LiveCluster) -> None:
    with live.unchanged():
        report = append(
            live.cluster, ONLY_BAD, on_bad_record="skip", producer="p", sequence=0
        ).raise_for_failures()
    assert (report.totals["records"], report.totals["bad_records"]) == (0, 2)


@pytest.mark.parametrize("named", [{}, {"producer": "p", "sequence": 3}], ids=["unnamed", "named"])
def test_bad_records_go_to_their_topic_with_what_happened(live: LiveCluster, named: dict[str, Any]) -> None:
    report = append(live.cluster, **TO_TOPIC, **named).raise_for_failures()
    assert live.read() == {0: ["1"], 1: ["2"]}
    assert live.read("bad") == {0: ["bad 1"], 1: ["bad 2"]}
    assert [(row["topic"], row["partition"]) for row in report.rows if row["outcome"] == "acknowledged"] == [
        ("t", 0),
        ("t", 1),
        ("bad", 0),
        ("bad", 1),
    ]
    [headers] = live.cluster.fetch("bad", 1, 0).records.column("headers").to_pylist()
    found = {one["key"].removeprefix(PREFIX): one["value"].decode() for one in headers}
    by = {"producer": "p", "sequence": "3"} if named else {}
    assert found == {"message": NO_KEY, "destination": "t-1", **by}


def test_a_repeated_append_has_each_bad_record_once(live: LiveCluster) -> None:
    """The repetition may come from any driver, even if the topic of bad records has got more partitions since."""
    for number in range(3):
        report = append(live.driver(), **TO_TOPIC, producer="p", sequence=0).raise_for_failures()
        assert ({row["outcome"] for row in report.rows} == {"duplicate", "bad"}) == (number > 0)
        if number == 1:
            live.cluster.topics.create_partitions("bad", 5)
    assert (live.read(), live.read("bad")) == ({0: ["1"], 1: ["2"]}, {0: ["bad 1"], 1: ["bad 2"]})
    append(live.driver(), **TO_TOPIC, producer="p", sequence=1).raise_for_failures()
    assert sum(map(len, live.read("bad").values())) == 4


def test_appends_of_one_producer_to_several_topics_share_a_topic_of_bad_records(live: LiveCluster) -> None:
    live.topic("u", partitions=2, cleanup_policy="snapshot")
    for topic in ("t", "u"):
        for _ in range(2):
            live.cluster.append_batches(topic, BATCHES, **TO_TOPIC, producer="p", sequence=0).raise_for_failures()
    assert live.read("bad") == {0: ["bad 1", "bad 1"], 1: ["bad 2", "bad 2"]}


def test_an_append_that_fails_leaves_none_in_the_topic_of_bad_records(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"})
    live.cluster.brokers.fence(live.followers()[0])
    report = append(live.cluster, **TO_TOPIC, producer="p", sequence=0)
    assert codes(report)["NOT_ENOUGH_REPLICAS"] == 2
    assert report.totals["bad_records"] == 2
    assert live.read("bad") == {}
    assert any(
        "bad records are appended to bad only after all good records are in t" in note for note in report.notes
    )


@pytest.mark.parametrize("named", [{}, {"producer": "p", "sequence": 3}], ids=["unnamed", "named"])
def test_if_the_topic_of_bad_records_fails_the_append_is_repeated_and_completed(
    live: LiveCluster, faults: Faults, named: dict[str, Any]
) -> None:
    faults.refuse(StorageError("no space left"), "stage", of="/bad-")
    driver = live.driver()
    report = append(driver, **TO_TOPIC, **named)
    assert {failure.item for failure in report.failures} == {"bad-0", "bad-1"}
    [note] = [note for note in report.notes if "the bad records are not all in bad" in note]
    faults.none()
    producer, sequence = note.split("producer '")[1].split("', sequence ")
    again = append(live.driver(), **TO_TOPIC, producer=producer, sequence=int(sequence)).raise_for_failures()
    assert {row["outcome"] for row in again.rows if row["topic"] == "t"} == {"duplicate", "bad"}
    assert (live.read(), live.read("bad")) == ({0: ["1"], 1: ["2"]}, {0: ["bad 1"], 1: ["bad 2"]})


def test_other_bad_records_under_the_same_sequence_are_refused(live: LiveCluster) -> None:
    append(live.cluster, **TO_TOPIC, producer="p", sequence=0).raise_for_failures()
    others = {0: [rows(("a", "1"), (None, "bad 3"))], 1: [rows((None, "bad 2"), ("b", "2"))]}
    report = append(live.cluster, others, **TO_TOPIC, producer="p", sequence=0)
    assert codes(report)["OUT_OF_ORDER_SEQUENCE_NUMBER"] == 1
    assert live.read("bad") == {0: ["bad 1"], 1: ["bad 2"]}


def test_an_accepted_replay_still_reports_its_bad_records(live: LiveCluster) -> None:
    for _ in range(2):
        report = append(
            live.driver(), **TO_TOPIC, producer="p", sequence=0, on_changed_replay="accept"
        ).raise_for_failures()
        assert report.totals["bad_records"] == 2
    assert live.read("bad") == {0: ["bad 1"], 1: ["bad 2"]}


def test_in_a_transaction_bad_records_count_with_it_or_not_at_all(live: LiveCluster) -> None:
    with live.cluster.transactions.begin("x") as transaction:
        transaction.append_batches("t", BATCHES, **TO_TOPIC)
    left = live.cluster.transactions.begin("x")
    left.append_batches("t", BATCHES, **TO_TOPIC)
    left.abort().raise_for_failures()
    committed = {
        topic: sorted(
            value
            for part in (0, 1)
            for value in live.cluster.fetch(topic, part, 0, isolation="read_committed")
            .records["value"]
            .to_pylist()
        )
        for topic in ("t", "bad")
    }
    assert committed == {"t": [b"1", b"2"], "bad": [b"bad 1", b"bad 2"]}


def delete_once(live: LiveCluster, faults: Faults, topic: str) -> None:
    """Another driver deletes the topic as soon as a file of ``t`` has its name."""
    other = live.driver()

    def delete(uri: str, what: str, name: str) -> None:
        if what == "commit" and "/t-" in name:
            faults.none()
            other.topics.delete(topic)

    faults.after = delete


@pytest.mark.parametrize("named", [{}, {"producer": "p", "sequence": 3}], ids=["unnamed", "named"])
def test_if_the_topic_of_bad_records_is_deleted_meanwhile_the_report_has_the_good_records(
    live: LiveCluster, faults: Faults, named: dict[str, Any]
) -> None:
    """An error without a report would say that nothing was appended."""
    driver = live.driver()
    delete_once(live, faults, "bad")
    report = append(driver, **TO_TOPIC, **named)
    assert live.read() == {0: ["1"], 1: ["2"]}
    assert [row["outcome"] for row in report.rows] == ["acknowledged", "acknowledged", "bad", "bad"]
    assert codes(report) == {"UNKNOWN_TOPIC_OR_PARTITION": 1}
    [note] = [note for note in report.notes if "the bad records are not all in bad" in note]
    with pytest.raises(OperationFailedError) as failed:
        report.raise_for_failures()
    assert note.partition(": ")[2] in str(failed.value)


def test_a_transaction_whose_topic_of_bad_records_is_deleted_can_only_be_aborted(
    live: LiveCluster, faults: Faults
) -> None:
    """The good records are in the log: without a marker they would stay undecided, and the next append of the
    transaction would be taken for a repetition."""
    transaction = live.driver().transactions.begin("x")
    delete_once(live, faults, "bad")
    with pytest.raises(OperationFailedError, match="abort the transaction, and begin a new one: nothing"):
        transaction.append_batches("t", BATCHES, **TO_TOPIC)
    with pytest.raises(InvalidTxnStateError, match="it was aborted"):
        transaction.commit()
    assert live.cluster.transactions.find_hanging().rows == []
    fetched = [live.cluster.fetch("t", part, 0, isolation="read_committed") for part in (0, 1)]
    assert [one.records.num_rows for one in fetched] == [0, 0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_bad_record": "ignore"}, InvalidCallError, "use 'fail', 'skip' or 'topic'"),
        ({"on_bad_record": "topic"}, InvalidCallError, "belong together"),
        ({"bad_record_topic": "bad"}, InvalidCallError, "belong together"),
        ({**TO_TOPIC, "bad_record_topic": "t"}, InvalidCallError, "name another topic"),
        ({**TO_TOPIC, "bad_record_topic": "typed"}, InvalidCallError, "has declared types"),
        ({**TO_TOPIC, "bad_record_topic": "keyed"}, InvalidCallError, "cleanup.policy = snapshot"),
        ({**TO_TOPIC, "bad_record_topic": "none"}, UnknownTopicOrPartitionError, "'none' does not exist"),
        ({**TO_TOPIC, "bad_record_topic": "__consumer_offsets"}, InvalidTopicError, "append bad records to"),
    ],
    ids=["answer", "no topic", "no answer", "itself", "typed", "keyed", "not there", "internal"],
)
def test_an_error_in_the_request_is_reported_before_anything_is_written(
    live: LiveCluster, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    live.topic("keyed", cleanup_policy="snapshot")
    live.cluster.topics.create("typed", value=StringType())
    with live.unchanged(), pytest.raises(error, match=message):
        append(live.cluster, **options)
