"""The command line of jobs/tail, with the options of kafka-console-consumer.sh and of tail(1)."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, MapType, StringType

from stratalog.jobs.main import main as stratalog
from stratalog.jobs.offsets import main as offsets
from stratalog.jobs.tail import main as tail
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.records import HEADERS
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.harness import batch
from tests.unit.jobs_harness import calls, nobody_reads, report


def built(folder: Path) -> LiveCluster:
    """``t``, with two partitions of twelve records and one."""
    live = LiveCluster(folder, on_disk=True)
    live.topic(partitions=2)
    live.append({0: [f"a{number}" for number in range(12)], 1: ["b"]}).raise_for_failures()
    return live


live, shared = live_and_shared(built)
run = calls(tail, "t")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The values, by partition."""
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return [line[4] for line in sorted(lines, key=lambda line: (int(line[0]), int(line[1])))]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ((), [*(f"a{number}" for number in range(2, 12)), "b"]),
        (("-n", "2"), ["a10", "a11", "b"]),
        (("-n", "0"), []),
        (("-n", "1", "--partitions", "0"), ["a11"]),
        (("--start", "0:10,1:1"), ["a10", "a11"]),
        (("--start", "earliest", "--partitions", "1"), ["b"]),
        (("--start", "11", "--partitions", "0"), ["a11"]),
        (("--start", "earliest", "--partitions", "0", "--max-messages", "3"), ["a0", "a1", "a2"]),
        (("--start", "1970-01-01T00:00:00.001011", "--partitions", "0"), ["a11"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_choose_the_records_that_a_tail_shows(
    shared: LiveCluster, argv: tuple[str, ...], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.unchanged():
        assert run(shared, *argv) == 0
    assert shown(capsys) == found


def test_a_line_is_partition_offset_timestamp_key_and_value(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, "-n", "1", "--partitions", "1") == 0
    out, err = capsys.readouterr()
    assert out == "1\t0\t1970-01-01T00:00:00.001+00:00\t\tb\n"
    assert "tail: done, records 1" in err


def test_json_is_one_object_per_line_and_the_report_at_the_end(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, "-n", "1", "--partitions", "1", "--json") == 0
    record, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert record == {
        "partition": 1,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:00.001+00:00",
        "key": None,
        "value": "b",
        "headers": [],
    }
    assert (last["operation"], last["totals"]["records"]) == ("tail", 1)
    (row,) = last["rows"]
    assert (row["partition"], row["start"], row["end"]) == (1, 0, 1)


def test_bytes_that_are_no_text_cannot_be_taken_for_text(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    r"""The byte ff, and the four characters \xff; in headers, keys and values."""
    values: list[bytes] = [b"\xff", rb"\xff", b"\\", b"a\tb\r\n", "\u00e9".encode(), b'{"base64": "/w=="}']
    live.topic("bytes")
    records = pa.record_batch(
        {
            "timestamp": pa.array([0] * len(values), pa.timestamp("us", "UTC")),
            "key": pa.array(values, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[{"key": "h", "value": value}] for value in values], HEADERS),
        }
    )
    live.cluster.append_batches("bytes", {0: [records]}).raise_for_failures()
    of_topic = calls(tail, "bytes")
    assert of_topic(live, "--json") == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()][:-1]
    wanted = [{"base64": "/w=="}, r"\xff", "\\", "a\tb\r\n", "\u00e9", '{"base64": "/w=="}']
    assert [one["value"] for one in objects] == wanted
    assert [one["key"] for one in objects] == wanted
    assert [one["headers"][0]["value"] for one in objects] == wanted
    assert of_topic(live) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    found = [line.split("\t")[4] for line in lines]
    assert found == [r"\xff", r"\\xff", r"\\", r"a\tb\r\n", "\u00e9", '{"base64": "/w=="}']


def test_times_beyond_the_calendar_and_text_that_is_invalid_are_shown_as_they_are(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark casts any bytes to a string, and any number is a timestamp."""
    live.topic("odd")
    keys = pa.array([b"\xff", b"h"], pa.binary()).view(pa.string())
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"1", b"2"])], fields=list(HEADERS.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs).cast(HEADERS)
    records = pa.record_batch(
        {
            "timestamp": pa.array([2**62, 0], pa.timestamp("us", "UTC")),
            "key": pa.nulls(2, pa.binary()),
            "value": pa.array([b"a", b"b"], pa.binary()),
            "headers": headers,
        }
    )
    live.cluster.append_batches("odd", {0: [records]}).raise_for_failures()
    of_topic = calls(tail, "odd")
    assert of_topic(live) == 0
    times = [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()]
    assert times == ["4611686018427387904 us", "1970-01-01T00:00:00.000+00:00"]
    assert of_topic(live, "--json") == 0
    first, second, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["headers"][0]["key"] for one in (first, second)] == [{"base64": "/w=="}, "h"]


def test_it_continues_where_a_group_stopped(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.cluster.groups.commit("g", {("t", 0): 11})
    with live.unchanged():
        assert run(live, "--group", "g") == 0
    assert shown(capsys) == ["a11", "b"]
    assert run(live, "--group", "nobody") == 2
    assert "ERROR GROUP_ID_NOT_FOUND: group 'nobody' does not exist" in capsys.readouterr().err


def test_it_follows_until_interrupted(
    live: LiveCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0

    def sleep(self: SystemClock, seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            live.append(["new"]).raise_for_failures()
        if waits == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    assert run(live, "-f", "-n", "1", "--partitions", "0") == 0
    assert shown(capsys) == ["a11", "new"]


def test_following_ends_with_a_timeout_or_a_number_of_records(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, "-f", "--start", "earliest", "--max-messages", "13") == 0
    assert len(shown(capsys)) == 13
    assert run(shared, "-f", "-n", "0", "--timeout", "1ms") == 0
    assert shown(capsys) == []


def test_a_reader_in_a_rack_reads_from_the_replica_in_its_rack(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    live.cluster.topics.alter_configs(
        None, {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    )
    for rack, broker in (("a", 1), ("b", 2), ("c", 3)):
        assert run(live, "-n", "1", "--json", "--client-rack", rack) == 0
        found = report(capsys)
        assert {row["broker"] for row in found["rows"]} == {broker}
        assert found["totals"]["cross_rack_bytes"] == 0


def test_read_committed_shows_only_committed_records(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.cluster.transactions.begin("loader").append_batches("t", {1: [batch(["open"])]})
    assert run(live, "--partitions", "1") == 0
    assert shown(capsys) == ["b", "open"]
    assert run(live, "--partitions", "1", "--isolation", "read_committed") == 0
    assert shown(capsys) == ["b"]
    for isolation, end in (("read_uncommitted", 2), ("read_committed", 1)):
        given = ["t", "--isolation", isolation, "--cluster", str(live.file), "--json"]
        assert offsets(given) == 0
        assert report(capsys)["rows"][1]["offset"] == end
    assert run(live, "--isolation", "serializable") == 2
    assert "'serializable' (choose from 'read_uncommitted', 'read_committed')" in capsys.readouterr().err


def test_a_reader_that_stops_reading_is_no_error(shared: LiveCluster, tmp_path: Path) -> None:
    with nobody_reads(tmp_path):
        assert run(shared) == run(shared, "--json") == 0


def test_standard_output_may_be_closed(shared: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert run(shared) == 0


@pytest.mark.parametrize(
    ("x", "line", "in_json"),
    [(float("nan"), "NaN", '"NaN"'), (float("-inf"), "-Infinity", '"-Infinity"'), (1.5, "1.5", "1.5")],
)
@pytest.mark.slow
def test_numbers_that_json_has_not_are_texts_as_sparks_to_json_writes_them(
    live: LiveCluster, x: float, line: str, in_json: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live.cluster.topics.create("floats", partitions=1, replication_factor=1, value=DoubleType())
    live.cluster.topics.create(
        "maps", partitions=1, replication_factor=1, value=MapType(StringType(), DoubleType())
    )
    for topic, value in (
        ("floats", pa.array([x])),
        ("maps", pa.array([[("x", x)]], pa.map_(pa.string(), pa.float64()))),
    ):
        records = batch(["a"])
        values = records.set_column(records.schema.get_field_index("value"), "value", value)
        live.cluster.append_batches(topic, {0: [values]}).raise_for_failures()
    capsys.readouterr()
    assert tail(["floats", "--cluster", str(live.file)]) == 0
    assert shown(capsys) == [line]
    for topic, wanted in (("floats", in_json), ("maps", f'[["x", {in_json}]]')):
        assert tail([topic, "--cluster", str(live.file), "--json"]) == 0
        assert f'"value": {wanted},' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-n", "-1"), "give a number of 0 or more"),
        (("-n", "1", "--start", "0"), "not allowed with"),
        (("--group", "g", "--start", "0"), "not allowed with"),
        (("--partitions", "5"), "ERROR UNKNOWN_TOPIC_OR_PARTITION: topic 't' has no partition 5"),
        (("--start", "99"), "ERROR OFFSET_OUT_OF_RANGE"),
        (("--start", "2999-01-01"), "is in the future"),
        (("--start", "soon"), "'soon': give an offset"),
        (("--auto-offset-reset", "newest"), "invalid choice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_calls_are_refused(
    shared: LiveCluster, argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, *argv) == 2
    assert message in capsys.readouterr().err


def test_it_is_one_of_the_commands(shared: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert stratalog(["tail", "t", "-n", "1", "--partitions", "1", "--cluster", str(shared.file)]) == 0
    assert shown(capsys) == ["b"]
    assert stratalog(["tail", "nobody", "--cluster", str(shared.file)]) == 2


# ------------------------------------------------------------------------------------- formats


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_keys_and_values_are_shown_as_their_bytes(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.topic("odd")
    live.cluster.produce("odd", [{"key": b"\xff", "value": "a\tb"}, {"key": None, "value": None}], key="key")
    live.cluster.topics.create("typed", value="n INT")
    live.cluster.produce("typed", [{"n": 1}])
    for how, key, value in (("hex", "ff", "610962"), ("base64", "/w==", "YQli")):
        assert calls(tail, "odd")(live, "--format", how) == 0
        found = lines(capsys)
        assert sorted(line[3:] for line in found) == [["", ""], [key, value]]
    assert calls(tail, "typed")(live, "--format", "hex") == 0
    assert bytes.fromhex(lines(capsys)[0][4]) == b'{"n": 1}'


SCHEMA = {
    "type": "record",
    "name": "trip",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "raw", "type": ["null", "bytes"]},
    ],
}


@pytest.mark.slow
def test_values_of_avro_are_decoded_by_their_schema(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = live.folder / "trip.avsc"
    schema.write_text(json.dumps(SCHEMA))
    made = io.BytesIO()
    trip = {"city": "Oslo", "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "raw": b"\xff"}
    fastavro.schemaless_writer(made, SCHEMA, trip)
    plain = {"city": "Oslo", "at": "2026-01-02T03:04:05.000006+00:00", "raw": {"base64": "/w=="}}
    for how, frame in (("avro", b""), ("confluent-avro", b"\0\0\0\0\x07")):
        live.topic(how)
        live.cluster.produce(how, [frame + made.getvalue(), {"value": None}])
        run_on = calls(tail, how, "--format", how, "--schema", str(schema))
        assert run_on(live) == 0
        assert [json.loads("\t".join(line))["value"] for line in lines(capsys)] == [plain, None]
        for wrong in (b"\0", frame + made.getvalue() + b"x"):
            live.cluster.produce(how, [wrong])
            assert run_on(live, "-n", "1") == 2
            assert "partition 0, offset " in capsys.readouterr().err
    assert calls(tail, "avro")(live, "--format", "avro") == 2
    assert calls(tail, "avro")(live, "--format", "avro", "--schema", "none.avsc") == 2
    assert calls(tail, "avro")(live, "--format", "hex", "--schema", str(schema)) == 2
