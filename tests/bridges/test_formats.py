"""Bytes of records as typed values: what each format decodes, to which type, and what it keeps as bytes."""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.bridges.formats.opening import open_decoder, typed_values
from stratalog.bridges.formats.registry import SchemaRegistry
from stratalog.bridges.formats.typed import TypedValues, undecoded
from stratalog.partitions.declared import ddl
from stratalog.partitions.errors import (
    EnvironmentUnusableError,
    InvalidCallError,
    RetriableError,
    StorageAuthorizationError,
)

AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def opened(folder: Path, how: str, schema: str | bytes, message: str | None = None) -> TypedValues:
    """The decoder of a schema file, and its pickled copy."""
    file = folder / "schema.avsc"
    file.write_bytes(schema if isinstance(schema, bytes) else schema.encode())
    values = typed_values(how, str(file), message)
    assert values is not None
    return pickle.loads(pickle.dumps(values))


def seen(values: TypedValues, given: list[bytes | None]) -> list[dict[str, Any] | None]:
    """The column, with each value without its null fields."""
    column = values.column(given)
    assert column.type == values.type
    kept = [value for value in column.to_pylist() if value is not None and value["_undecoded"] is not None]
    assert undecoded(column) == len(kept)
    found: list[dict[str, Any] | None] = []
    for value, original in zip(column.to_pylist(), given, strict=True):
        if value is None:
            assert original is None
        elif value["_undecoded"] is not None:
            assert (value["_undecoded"], [one for name, one in value.items() if one is not None]) == (
                original,
                [original],
            )
        found.append(value if value is None else {name: one for name, one in value.items() if one is not None})
    return found


AVRO = {
    "type": "record",
    "name": "trip",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "kind"]},
        {"name": "stops", "type": {"type": "array", "items": "int"}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
    ],
}


@pytest.mark.parametrize(("how", "frame"), [("avro", b""), ("confluent-avro", b"\0\0\0\0\x07")])
def test_avro_values_are_decoded_into_typed_columns(how: str, frame: bytes, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    values = opened(tmp_path, how, json.dumps(AVRO))
    assert ddl(values.schema) == (
        "_undecoded BINARY, city STRING, at TIMESTAMP, day DATE, fare DECIMAL(9,2), id STRING, kind STRING, "
        "again STRING, stops ARRAY<INT>, tags MAP<STRING, DOUBLE>"
    )
    trip = {
        "city": "Oslo",
        "at": AT,
        "day": date(2026, 1, 2),
        "fare": Decimal("12.50"),
        "id": UUID(int=7),
        "kind": "A",
        "again": "B",
        "stops": [1, 2],
        "tags": {"x": 1.5},
    }
    made = io.BytesIO()
    fastavro.schemaless_writer(made, AVRO, trip)
    good = frame + made.getvalue()
    wrong = [b"", good[:-1], good + b"x", b"\xff" * 20]
    found = seen(values, [good, None, *wrong])
    assert found == [
        {**trip, "id": str(UUID(int=7)), "tags": [("x", 1.5)]},
        None,
        *({"_undecoded": value} for value in wrong),
    ]


def record(*fields: tuple[str, str | dict[str, str]]) -> str:
    """A schema of Avro."""
    given = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields]
    return json.dumps({"type": "record", "name": "trip", "fields": given})


NARROW, WIDE = record(("id", "int")), record(("id", "long"), ("city", "string"))
ANSWERS = {
    1: (200, {"schema": NARROW}),
    2: (200, {"schema": WIDE}),
    3: (200, {"schema": record(("id", "long"), ("city", "string"), ("more", "int"))}),
    4: (200, {"schema": "message T {}", "schemaType": "PROTOBUF"}),
    5: (200, {"schema": record(("id", "string"))}),
    6: (404, {"error_code": 40403}),
    7: (500, {}),
    8: (403, {}),
    9: (200, {"schema": record(("at", "long"))}),
    10: (200, {"schema": record(("at", {"type": "long", "logicalType": "local-timestamp-millis"}))}),
    11: (200, {"schema": record(("at", {"type": "long", "logicalType": "timestamp-micros"}))}),
}
"""Answers of a registry, keyed by schema id."""


@pytest.fixture
def registry() -> Iterator[dict[str, str]]:
    """The configs of a registry, which must be asked for each schema once."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()
            asked.append(self.path)
            status, body = ANSWERS[int(self.path.removeprefix("/schemas/ids/"))]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "schema.registry.url": f"http://127.0.0.1:{server.server_port}/",
            "schema.registry.basic.auth.user.info": "me:secret",
        }
        server.shutdown()
    assert len(asked) == len(set(asked))


def framed(number: int, schema: str, value: dict[str, Any]) -> bytes:
    """A value after the id of its schema."""
    made = io.BytesIO(b"\0" + number.to_bytes(4))
    made.seek(5)
    pytest.importorskip("fastavro").schemaless_writer(made, json.loads(schema), value)
    return made.getvalue()


@pytest.mark.slow
def test_values_of_avro_are_read_by_the_schema_of_their_id(tmp_path: Path, registry: dict[str, str]) -> None:
    file = tmp_path / "trip.avsc"
    file.write_text(WIDE)
    values = typed_values("confluent-avro", str(file), None, registry)
    assert values is not None

    narrow, wide = framed(1, NARROW, {"id": 7}), framed(2, WIDE, {"id": 2**40, "city": "Oslo"})
    wrong = [framed(number, NARROW, {"id": 7}) for number in (3, 4, 5, 6)]
    assert seen(values, [narrow, wide, *wrong, *wrong, narrow]) == [
        {"id": 7},
        {"id": 2**40, "city": "Oslo"},
        *({"_undecoded": value} for value in [*wrong, *wrong]),
        {"id": 7},
    ]
    with pytest.raises(RetriableError, match="asked for schema 7: 500"):
        values.column([framed(7, NARROW, {"id": 7})])
    with pytest.raises(StorageAuthorizationError, match="403"):
        values.column([framed(8, NARROW, {"id": 7})])


@pytest.mark.slow
def test_a_number_of_a_writer_is_not_taken_for_a_time(tmp_path: Path, registry: dict[str, str]) -> None:
    """The writer's type says what a number means: without one, milliseconds would be read as microseconds."""
    file = tmp_path / "trip.avsc"
    file.write_text(record(("at", {"type": "long", "logicalType": "timestamp-millis"})))
    values = typed_values("confluent-avro", str(file), None, registry)
    assert values is not None
    schemas = {number: str(ANSWERS[number][1]["schema"]) for number in (9, 10, 11)}
    number, local = framed(9, schemas[9], {"at": 1_767_323_045_000}), framed(10, schemas[10], {"at": AT})
    time = framed(11, schemas[11], {"at": AT})
    assert seen(values, [number, local, time]) == [{"_undecoded": number}, {"_undecoded": local}, {"at": AT}]


@pytest.mark.slow
def test_credentials_of_a_registry_do_not_follow_a_redirect() -> None:
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200 if self.path == "/elsewhere" else 302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            if self.path == "/elsewhere":
                self.wfile.write(json.dumps({"schema": '"string"'}).encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        asked = SchemaRegistry({"schema.registry.url": url, "schema.registry.basic.auth.user.info": "me:secret"})
        assert asked.schema(7) == "string"
        server.shutdown()
    assert [one is None for one in seen] == [False, True]


def test_a_server_that_is_no_registry_is_named(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    file = tmp_path / "trip.avsc"
    file.write_text(WIDE)
    for how, configs, message in (
        ("confluent-avro", {"schema.registry.url": "kafka:8081"}, "https://host:8081"),
        ("confluent-avro", {"schema.registry.urls": "http://kafka:8081"}, "is not a config of the registry"),
        ("avro", {"schema.registry.url": "http://kafka:8081"}, "is for confluent-avro"),
    ):
        with pytest.raises(InvalidCallError, match=message):
            typed_values(how, str(file), None, configs)
    gone = typed_values("confluent-avro", str(file), None, {"schema.registry.url": "http://127.0.0.1:1"})
    assert gone is not None
    with pytest.raises(RetriableError, match="the schema registry"):
        gone.column([b"\0\0\0\0\1"])


JSON = """id LONG NOT NULL, small TINYINT, name STRING, ok BOOLEAN, ratio FLOAT, fare DECIMAL(6,2), at TIMESTAMP,
    day DATE, raw BINARY, legs ARRAY<STRUCT<gate: STRING NOT NULL>>, tags MAP<STRING, INT>"""


def test_json_values_are_decoded_into_typed_columns(tmp_path: Path) -> None:
    values = opened(tmp_path, "json", JSON)
    good = {
        "id": 2**62 + 1,
        "small": -128,
        "name": "a",
        "ok": True,
        "ratio": 0.5,
        "fare": "1234.50",
        "at": "2026-01-02T04:04:05.000006000+01:00",
        "day": "2026-01-02",
        "raw": "/w==",
        "legs": [{"gate": "B"}],
        "tags": {"x": 1},
    }
    typed = {**good, "fare": Decimal("1234.50"), "at": AT, "day": date(2026, 1, 2), "raw": b"\xff"}
    assert seen(values, [json.dumps(good).encode(), None, b'{"id": 1, "name": null, "fare": 1.25}', b"null"]) == [
        {**typed, "tags": [("x", 1)]},
        None,
        {"id": 1, "fare": Decimal("1.25")},
        {"_undecoded": b"null"},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "{", "7", "[]", "{}", '{"id": null}', '{"id": "1"}', '{"id": 1.5}', '{"id": true}', '{"id": 1e40}'),
        *('{"id": 1, "other": 2}', '{"id": 9223372036854775808}', '{"id": 1, "small": 128}'),
        *('{"id": 1, "ratio": 1e300}', '{"id": 1, "fare": "1.234"}', '{"id": 1, "fare": 12345678901234567.5}'),
        *('{"id": 1, "fare": "x"}', '{"id": 1, "at": "2026-01-02T03:04:05"}', '{"id": 1, "at": 5}'),
        '{"id": 1, "at": "2026-01-02T03:04:05.0000061Z"}',
        *('{"id": 1, "day": "2026-13-01"}', '{"id": 1, "raw": "?"}', '{"id": 1, "legs": [{}]}'),
        *(
            '{"id": 1, "legs": [{"gate": "B", "more": 1}]}',
            '{"id": 1, "tags": {"x": "1"}}',
            '{"id": 1, "tags": []}',
        ),
    ],
)
def test_json_that_is_not_of_the_type_is_kept_as_it_is(wrong: str, tmp_path: Path) -> None:
    values = opened(tmp_path, "json", JSON)
    assert seen(values, [wrong.encode(), b'{"id": 1}']) == [{"_undecoded": wrong.encode()}, {"id": 1}]


def descriptors() -> bytes:
    """A file with a message, as protoc writes it."""
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    stamps = pytest.importorskip("google.protobuf.timestamp_pb2")
    text = pytest.importorskip("google.protobuf.text_format")
    file = text.Parse(
        """
        name: "trip.proto" package: "p" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
        enum_type { name: "Kind" value { name: "A" number: 0 } value { name: "B" number: 1 } }
        message_type {
          name: "Trip"
          field { name: "id" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
          field { name: "kind" number: 2 type: TYPE_ENUM type_name: ".p.Kind" label: LABEL_OPTIONAL }
          field { name: "at" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"
                  label: LABEL_OPTIONAL }
          field { name: "raw" number: 4 type: TYPE_BYTES label: LABEL_REPEATED }
          field { name: "tags" number: 5 type: TYPE_MESSAGE type_name: ".p.Trip.TagsEntry" label: LABEL_REPEATED }
          field { name: "maybe" number: 6 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0
                  proto3_optional: true }
          oneof_decl { name: "_maybe" }
          nested_type {
            name: "TagsEntry"
            options { map_entry: true }
            field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
            field { name: "value" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
          }
        }
        message_type {
          name: "Node"
          field { name: "next" number: 1 type: TYPE_MESSAGE type_name: ".p.Node" label: LABEL_OPTIONAL }
        }
        """,
        pb2.FileDescriptorProto(),
    )
    stamp = pb2.FileDescriptorProto()
    stamps.DESCRIPTOR.CopyToProto(stamp)
    return bytes(pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString())


def test_protobuf_values_are_decoded_into_typed_columns(tmp_path: Path) -> None:
    values = opened(tmp_path, "protobuf", descriptors(), "p.Trip")
    assert ddl(values.schema) == (
        "_undecoded BINARY, id DECIMAL(20,0), kind STRING, at TIMESTAMP, raw ARRAY<BINARY>, "
        "tags MAP<STRING, DOUBLE>, maybe INT"
    )
    largest = b"\x08" + b"\xff" * 9 + b"\x01"
    stamp = b"\x1a\x02\x08\x05"
    tag = b"\x2a\x0c\x0a\x01x\x11" + bytes(6) + b"\xf8\x3f"
    whole = largest + b"\x10\x01" + stamp + b"\x22\x01\xff" + tag + b"\x30\x00"
    wrong = [b"\x08", b"\x10\x09", b"\x38\x01", b"\x1a\x02\x10\x01"]
    found = seen(values, [whole, b"", None, *wrong])
    assert found == [
        {
            "id": Decimal(2**64 - 1),
            "kind": "B",
            "at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
            "raw": [b"\xff"],
            "tags": [("x", 1.5)],
            "maybe": 0,
        },
        {"id": Decimal(0), "kind": "A", "raw": [], "tags": []},
        None,
        *({"_undecoded": value} for value in wrong),
    ]


@pytest.mark.parametrize(
    ("how", "schema", "message", "found"),
    [
        ("json", "LONG", None, "must have fields"),
        ("json", "a INTERVAL", None, "is unknown"),
        ("json", "a MAP<INT, INT>", None, "keys of a JSON object are strings"),
        ("json", "_Undecoded INT", None, "reserved for bytes that are not decoded"),
        ("json", "a INT", "m", "message"),
        ("avro", "{", None, "not a readable Avro schema"),
        ("avro", '"string"', None, "not the Avro schema of a record"),
        (
            "avro",
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            None,
            "union",
        ),
        (
            "avro",
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}',
            None,
            "recursive",
        ),
        ("protobuf", b"\xff", "p.Trip", "no readable descriptor"),
        ("protobuf", descriptors(), "p.None", "no readable descriptor"),
        ("protobuf", descriptors(), "p.Node", "recursive"),
        ("protobuf", descriptors(), None, "message"),
        ("xml", "a INT", None, "known formats: avro"),
    ],
)
def test_schemas_that_no_topic_can_have_are_refused(
    how: str, schema: str | bytes, message: str | None, found: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidCallError, match=found):
        opened(tmp_path, how, schema, message)


def test_a_format_needs_its_schema_and_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed_values(None, None) is None
    for given in (("json", None), (None, "file"), (None, None, "message")):
        with pytest.raises(InvalidCallError, match="go together"):
            typed_values(*given)
    with pytest.raises(InvalidCallError, match="cannot be read"):
        open_decoder("json", str(tmp_path / "none"))
    (tmp_path / "schema").write_bytes(descriptors())
    for package, how, message in (("fastavro", "avro", None), ("google.protobuf", "protobuf", "p.Trip")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(EnvironmentUnusableError, match=r"pip install 'stratalog\["):
            open_decoder(how, str(tmp_path / "schema"), message)
