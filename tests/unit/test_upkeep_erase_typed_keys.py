"""Keys of each type in a file of JSON: they equal those of the records, or are refused, and are never others."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.jobs import erase as job
from stratalog.jobs.erase import read_keys, typed_keys
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import schema_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.erase_harness import SECRET

STRUCT = "id BIGINT, b BINARY"
NESTED = "id BIGINT, of STRUCT<day: DATE, area: STRING>"
FULL = {"id": 1, "of": {"day": "2020-01-02", "area": None}}


def live_with(folder: Path, ddl: str, *keys: object) -> LiveCluster:
    live = LiveCluster(folder, on_disk=True)
    configs = {"file.delete.delay.ms": "0"}
    live.cluster.topics.create("u", partitions=1, replication_factor=1, key=ddl, configs=configs)
    topic = live.cluster.image.topic("u")
    kind = schema_of(topic.key_schema, topic.value_schema).field("key").type
    live.cluster.produce("u", pa.table({"key": pa.array(keys, kind), "value": [b"v"] * len(keys)}))
    return live


def read(live: LiveCluster, folder: Path, *lines: str) -> list[object]:
    path = folder / "keys"
    path.write_text("\n".join(lines))
    return typed_keys(read_keys(path, "json"), [live.cluster.image.topic("u")], path)


@pytest.mark.parametrize(
    ("ddl", "line", "key", "other"),
    [
        ("DATE", '"2020-01-02"', date(2020, 1, 2), date(2020, 1, 3)),
        ("DECIMAL(10,2)", "1.5", Decimal("1.50"), Decimal("1.51")),
        ("DECIMAL(10,2)", '"1.50"', Decimal("1.50"), Decimal("1.51")),
        ("DECIMAL(18,2)", '"1234567890123456.91"', Decimal("1234567890123456.91"), Decimal("1.00")),
        (
            "TIMESTAMP",
            '"2020-01-02T00:00:00Z"',
            datetime(2020, 1, 2, tzinfo=UTC),
            datetime(2020, 1, 3, tzinfo=UTC),
        ),
        ("TIMESTAMP_NTZ", '"2020-01-02T00:00:00"', datetime(2020, 1, 2), datetime(2020, 1, 3)),
        ("BOOLEAN", "true", True, False),
        ("INT", "7", 7, 8),
        ("STRING", '"7"', "7", "8"),
        ("BINARY", '{"base64": "AP8="}', b"\x00\xff", b"AP8="),
        ("BINARY", '"AP8="', b"AP8=", b"\x00\xff"),
        (STRUCT, '{"id": 1, "b": {"base64": "AP8="}}', {"id": 1, "b": b"\x00\xff"}, {"id": 1, "b": b"AP8="}),
        (STRUCT, '{"b": null, "id": 1}', {"id": 1, "b": None}, {"id": 1, "b": b""}),
        (
            NESTED,
            json.dumps(FULL),
            {"id": 1, "of": {"day": date(2020, 1, 2), "area": None}},
            {"id": 1, "of": {"day": date(2020, 1, 2), "area": "x"}},
        ),
    ],
)
def test_a_key_erases_its_records_alone(tmp_path: Path, ddl: str, line: str, key: Any, other: Any) -> None:
    live = live_with(tmp_path, ddl, key, other, key)
    report = live.cluster.erase("u", read(live, tmp_path, line))
    assert [row["records"] for row in report.rows] == [2]
    assert live.cluster.fetch("u", 0, 0).records.column("key").to_pylist() == [other]


@pytest.mark.parametrize(
    ("ddl", "line", "why"),
    [
        ("DATE", '"2020-13-02"', 'line 2 is not of the key type .*such as "2013-01-02"'),
        ("DATE", "20200102", "line 2 is not of the key type"),
        ("DECIMAL(18,2)", "1234567890123456.91", "line 2 is not of the key type"),
        ("DECIMAL(10,2)", '"x"', "line 2 is not of the key type"),
        ("TIMESTAMP", '"tomorrow"', "line 2 is not of the key type"),
        ("INT", "777777.5", "line 2 is not of the key type"),
        ("INT", '"7777777"', "line 2 is not of the key type"),
        ("INT", "true", "line 2 is not of the key type"),
        ("STRING", "7777777", "line 2 is not of the key type"),
        ("BINARY", '{"base64": "!"}', "line 2 is not of the key type"),
        (STRUCT, '{"id": 1}', "line 2 lacks the field 'b'"),
        (STRUCT, '{"id": 1, "b": "x", "secret": 1}', "line 2 has a field that the key type lacks"),
        (NESTED, '{"id": 1, "of": {"day": "2020-01-02"}}', "line 2 in its field 'of' lacks the field 'area'"),
    ],
)
def test_a_key_that_is_not_of_the_type_is_refused_by_its_line(
    tmp_path: Path, ddl: str, line: str, why: str
) -> None:
    live = live_with(tmp_path, ddl)
    with pytest.raises(InvalidCallError, match=why) as error:
        read(live, tmp_path, "null", line)
    assert line not in str(error.value)
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None


def test_the_command_reads_keys_as_the_type_of_the_topic(tmp_path: Path) -> None:
    live = live_with(tmp_path, "DATE", date(2020, 1, 2), date(2020, 1, 3))
    (tmp_path / "keys").write_text('"2020-01-02"')
    file = ["--keys-file", str(tmp_path / "keys"), "--key-format", "json"]
    assert job.main(["u", *file, "--yes", "--cluster", str(live.file)]) == 0
    assert live.cluster.fetch("u", 0, 0).records.column("key").to_pylist() == [date(2020, 1, 3)]


def test_topics_of_several_key_types_are_erased_one_after_the_other(tmp_path: Path) -> None:
    live = live_with(tmp_path, "DATE")
    live.cluster.topics.create("w", partitions=1, replication_factor=1, key="INT")
    topics = [live.cluster.image.topic(name) for name in ("u", "w")]
    with pytest.raises(InvalidCallError, match="different key types"):
        typed_keys([1], topics, tmp_path)


def test_records_are_erased_by_typed_keys(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.cluster.topics.create(
        "u",
        partitions=2,
        replication_factor=3,
        key="id BIGINT, area STRING",
        configs={"file.delete.delay.ms": "0"},
    )
    key_type = pa.struct([("id", pa.int64()), ("area", pa.string())])
    rows = [{"id": 1, "area": "x"}, {"id": 1, "area": "y"}, {"id": 2, "area": "x"}, {"id": 1, "area": None}]
    live.cluster.produce("u", pa.table({"key": pa.array(rows, key_type), "value": [b"v"] * 4}))
    with pytest.raises(InvalidCallError, match="key 1 has a field that the key type lacks") as error:
        live.cluster.erase("u", [{"id": 1, "area": "x", SECRET: 1}])
    assert SECRET not in str(error.value), "the history has this text"
    with pytest.raises(InvalidCallError, match="key 2 lacks the field 'area'"):
        live.cluster.erase("u", [{"id": 1, "area": "x"}, {"id": 1}])
    report = live.cluster.erase("u", [{"id": 1, "area": "x"}, {"id": 1, "area": None}])
    assert sum(int(str(row["records"])) for row in report.rows) == 2
    left = [row["key"] for p in (0, 1) for row in live.cluster.fetch("u", p, 0).records.to_pylist()]
    assert sorted(left, key=str) == sorted(rows[1:3], key=str)


@pytest.mark.parametrize(
    ("text", "key_format", "keys"),
    [
        ("a\nü\n", "text", ["a", "ü"]),
        ("\ufeffa\r\nb", "text", ["a", "b"]),
        ("61\nff00\n", "hex", [b"a", b"\xff\x00"]),
        ("YQ==\n", "base64", [b"a"]),
        ('{"id": 1}\n7\n"x"\n', "json", [{"id": 1}, 7, "x"]),
    ],
)
def test_a_file_of_keys_is_read_in_each_format(
    tmp_path: Path, text: str, key_format: str, keys: list[object]
) -> None:
    (tmp_path / "keys").write_text(text)
    assert read_keys(tmp_path / "keys", key_format) == keys


@pytest.mark.parametrize(("text", "key_format"), [("zz", "hex"), ("a", "base64"), ("{", "json")])
def test_a_line_that_is_no_key_is_named_by_its_number(tmp_path: Path, text: str, key_format: str) -> None:
    (tmp_path / "keys").write_text({"hex": "61", "base64": "YQ==", "json": "1"}[key_format] + f"\n{text}\n")
    with pytest.raises(InvalidCallError, match="line 2, is not") as error:
        read_keys(tmp_path / "keys", key_format)
    assert f" {text} " not in str(error.value)


def test_an_empty_line_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a\n\n")
    with pytest.raises(InvalidCallError, match="line 2, is empty"):
        read_keys(tmp_path / "keys", "text")
