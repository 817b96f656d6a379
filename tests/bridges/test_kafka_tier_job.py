"""The command line of a reader of the tier, and values that are decoded with a schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from stratalog.bridges.formats.typed import UNDECODED
from stratalog.bridges.jobs.kafka_tier import main
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from stratalog.bridges.kafka_tier.segment_states import SegmentStates
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.memory import MemoryStore
from tests.bridges.kafka_tier_data import (
    MAIN,
    LayoutOptions,
    Tier,
    batch_bytes,
    open_layout,
    opened,
    real,
    rows_of,
)

HERE = Tier(MAIN).path
OPEN = ["--layout", "local", "--prefix", "kafka-tiered-storage/", "--metadata", f"{HERE}/remote-log-metadata"]


def report(capsys: pytest.CaptureFixture[str], command: str, *words: str) -> dict[str, Any]:
    status = main([command, f"{HERE}/tier", *words, *OPEN, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (1 if found["failures"] else 0)
    return found


@real
def test_topics_have_their_offsets_and_what_is_unclear(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {(row["topic"], row["partition"]): row for row in report(capsys, "topics")["rows"]}
    assert [rows["plain", 0][name] for name in ("start", "end", "unclear")] == [0, 2430, None]
    assert rows["retention-partly", 0]["unclear"].endswith("its deletion has begun")


@real
def test_segments_say_what_counts_and_why_the_rest_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    rows = report(capsys, "segments", "unclean")["rows"]
    assert len(rows) == 8
    assert [row["counts"] for row in rows if row["why"] is None] == [
        *("[0, 275)", "[275, 550)", "[550, 825)", "[825, 1100)", "[1100, 1375)"),
    ]
    assert {row["counts"] for row in rows if "abandoned history" in (row["why"] or "")} == {"no"}
    whys = [row["why"] for row in report(capsys, "segments", "retention-done")["rows"]]
    assert "it was deleted" in whys


@real
def test_records_are_shown_counted_or_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = report(capsys, "read", "plain", "--partitions", "1", "--start", "1:5", "--limit", "3")
    assert [row["offset"] for row in found["rows"]] == [5, 6, 7]
    counted = report(capsys, "read", "txn", "--isolation", "read_committed", "--count")
    part = f"{tmp_path}/txn.parquet"
    (tmp_path / "txn.parquet.part").write_text("of somebody else")
    written = report(capsys, "read", "txn", "--isolation", "read_committed", "--output", part)
    assert written["totals"]["records"] == counted["totals"]["records"] == pq.read_metadata(part).num_rows
    assert any(re.match(r"left out: txn-0 offsets \[1033, 1594\)", note) for note in written["notes"])
    whole = opened(MAIN)
    with pytest.warns(UserWarning, match="left out"):
        table = whole.read_arrow("txn", isolation="read_committed").read_all()
    assert rows_of(pq.read_table(part)) == rows_of(table)
    assert main(["read", f"{HERE}/tier", "txn", *OPEN, "--output", part]) == 2
    assert "already exists" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["txn.parquet", "txn.parquet.part"]
    assert (tmp_path / "txn.parquet.part").read_text() == "of somebody else"


@real
def test_unclear_offsets_are_an_error_unless_they_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["retention-partly", "--start", "0", "--count"]
    assert main(["read", f"{HERE}/tier", *words, *OPEN]) == 1
    assert "offsets [0, 300)" in capsys.readouterr().err
    found = report(capsys, "read", *words, "--leave-out-unclear")
    assert found["totals"]["records"] == 600


@real
def test_epochs_and_log_starts_are_given_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The arguments are those of a mirror; the epoch file is that of a broker whose leader was elected later."""
    known = Tier(MAIN).truth("plain")["partitions"][1]["leaderEpochCheckpoint"]
    cut = known[-1][1]
    epochs = tmp_path / "leader-epoch-checkpoint"
    lines = [f"{epoch} {start}\n" for epoch, start in [*known[:-1], [known[-1][0] + 1, cut]]]
    epochs.write_text(f"0\n{len(known)}\n{''.join(lines)}")
    words = ["--log-start", "plain-0=777", "--epochs", f"plain-1={epochs}"]
    rows = {(row["topic"], row["partition"]): row for row in report(capsys, "topics", *words)["rows"]}
    assert rows["plain", 0]["start"] == 777
    assert rows["plain", 1]["end"] == cut
    counted = report(capsys, "read", "plain", "--partitions", "0", "--count", *words)
    assert counted["totals"]["records"] == 2430 - 777


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["read", "/t", "x", "--layout", "local"], "give either metadata"),
        (["topics", "/t", "--layout", "local", "--bootstrap", "h:1", "--epochs", "t-0=f"], "needs --metadata"),
        (["topics", "/t", "--layout", "local", "--bootstrap", "h:1", "--log-start", "t-0=1"], "needs --metadata"),
        (["topics", "/t", "--layout", "local", "--metadata", "/m", "--log-start", "t=1"], "is not a partition"),
        (["read", "/t", "x", "--layout", "loca", "--metadata", "/m"], "unknown layout 'loca'"),
        (
            ["read", "/t", "x", "--layout", "local", "--metadata", "/m", "--format", "json"],
            "--format needs --schema",
        ),
        (
            ["topics", "/t", "--layout", "local", "--metadata", "/m", "--bootstrap", "h:1"],
            "cannot be used together",
        ),
        (["topics", "/t"], "--layout"),
    ],
)
def test_a_wrong_call_says_what_to_do(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- values with a
# schema

SCHEMA = {
    "type": "record",
    "name": "trip",
    "fields": [{"name": "n", "type": "long"}, {"name": "to", "type": "string"}],
}


def typed_tier(values: list[bytes | None]) -> KafkaTier:
    """One segment with these values."""
    data = batch_bytes([(b"k", value, []) for value in values])
    segment = RemoteLogSegment(
        *("A" * 22, "t", 0, "B" * 22, 0, len(values) - 1, 1_800_000_000_000, len(data), ((0, 0),)),
        state=SegmentState.COPY_SEGMENT_FINISHED,
        txn_index_empty=True,
    )
    store = MemoryStore("memory://typed", ManualClock())
    layout = open_layout("local", LayoutOptions())
    names = layout.objects(segment)
    store.create(names["log"], data)
    store.create(names["leaderEpoch"], b"0\n1\n0 0\n")
    return KafkaTier(store, layout, SegmentStates({segment.segment_id: segment}))


def avro(tmp_path: Path) -> tuple[list[bytes | None], dict[str, Any]]:
    import io

    def encoded(n: int) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, SCHEMA, {"n": n, "to": f"town {n}"})
        return buffer.getvalue()

    path = tmp_path / "trip.avsc"
    path.write_text(json.dumps(SCHEMA))
    return [encoded(1), None, b"\xff", encoded(2)], {"value_format": "avro", "schema_file": str(path)}


def in_json(tmp_path: Path) -> tuple[list[bytes | None], dict[str, Any]]:
    path = tmp_path / "trip.ddl"
    path.write_text("n bigint, to string")
    values = [b'{"n": 1, "to": "town 1"}', None, b'{"n": "x"}', b'{"n": 2, "to": "town 2"}']
    return [*values], {"value_format": "json", "schema_file": str(path)}


def protobuf(tmp_path: Path) -> tuple[list[bytes | None], dict[str, Any]]:
    from google.protobuf import descriptor_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="trip.proto", package="a", syntax="proto3")
    made = file.message_type.add(name="Trip")
    made.field.add(name="n", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    made.field.add(name="to", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    path = tmp_path / "trip.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    values = [b"\x08\x01\x12\x06town 1", None, b"\xff", b"\x08\x02\x12\x06town 2"]
    return [*values], {"value_format": "protobuf", "schema_file": str(path), "message": "a.Trip"}


@pytest.mark.parametrize("of", [avro, in_json, protobuf])
def test_values_are_decoded_as_the_mirror_does(of: Any, tmp_path: Path) -> None:
    values, how = of(tmp_path)
    table = typed_tier(values).read_arrow("t", **how).read_all()
    assert table.column("value").to_pylist() == [
        {UNDECODED: None, "n": 1, "to": "town 1"},
        None,
        {UNDECODED: values[2], "n": None, "to": None},
        {UNDECODED: None, "n": 2, "to": "town 2"},
    ]
    assert table.column("offset").to_pylist() == [0, 1, 2, 3]


def test_a_format_needs_its_schema() -> None:
    with pytest.raises(InvalidCallError, match="go together"):
        typed_tier([b"x"]).read_arrow("t", value_format="avro")
