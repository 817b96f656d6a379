"""Declared types are converted to Spark's without importing or running anything of the text; no JVM is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.types import DataType, StringType, StructField, StructType

from stratalog.engine.cluster.arguments import declared
from stratalog.engine.spark.types import spark_type
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.growth import ADDED
from stratalog.partitions.records import MOST_NESTED, type_from_json, type_to_json
from tests.unit.test_records import types


def struct(**metadata: Any) -> str:
    field = {"name": "a", "type": "string", "nullable": True, "metadata": metadata}
    return json.dumps({"type": "struct", "fields": [field]})


def nested(depth: int) -> str:
    return '{"type":"array","elementType":' * (depth - 1) + '"long"' + "}" * (depth - 1)


@pytest.mark.slow
@given(types)
def test_a_declared_type_is_the_one_that_spark_would_read(data_type: pa.DataType) -> None:
    text = type_to_json(data_type)
    ours = spark_type(text)
    assert json.loads(ours.json()) == json.loads(text)
    assert declared(ours) == json.dumps(json.loads(ours.json()), separators=(",", ":"))
    assert type_from_json(ours.json()) == data_type


UDT = '{"type":"udt","class":null,"pyClass":"evil_type.X","sqlType":"string","serializedClass":"gASVAAAA"}'


@pytest.mark.parametrize(
    "text",
    [
        UDT,
        json.dumps({"type": "struct", "fields": [{"name": "a", "type": json.loads(UDT), "nullable": True}]}),
        json.dumps({"type": "array", "elementType": json.loads(UDT), "containsNull": True}),
        json.dumps({"type": "map", "keyType": "string", "valueType": json.loads(UDT)}),
    ],
)
def test_the_class_that_a_type_names_is_not_imported(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declared type is in the metadata and in backups, and PySpark would import the module of a user-defined
    one.
    """
    (tmp_path / "evil_type.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('was_here').touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidCallError, match="cannot hold the type"):
        spark_type(text)
    assert "evil_type" not in sys.modules
    assert not (tmp_path / "was_here").exists()


def test_a_comment_in_the_metadata_stays_and_nothing_that_spark_or_delta_would_execute() -> None:
    code = "java_method('java.lang.System', 'setProperty', 'pwned', 'yes')"
    orders = {
        "EXISTS_DEFAULT": code,
        "CURRENT_DEFAULT": code,
        "delta.generationExpression": code,
        "delta.invariants": json.dumps({"expression": {"expression": code}}),
        "__CHAR_VARCHAR_TYPE_STRING": "varchar(1)",
        "delta.columnMapping.physicalName": "other",
    }
    for read in (spark_type, lambda text: spark_type(declared(StructType.fromJson(json.loads(text))))):
        found = read(struct(comment="it's `odd`", **{ADDED: True}, **orders))
        assert isinstance(found, StructType)
        assert found["a"].metadata == {"comment": "it's `odd`", ADDED: True}
        wrong = read(struct(comment={"a": code}, **{ADDED: code}))
        assert isinstance(wrong, StructType)
        assert wrong["a"].metadata == {}


@pytest.mark.parametrize("metadata", [None, [], "x", 5])
def test_field_metadata_of_another_form_is_ignored(metadata: object) -> None:
    field = {"name": "a", "type": "string", "nullable": True, "metadata": metadata}
    found = spark_type(json.dumps({"type": "struct", "fields": [field]}))
    assert found == StructType([StructField("a", StringType())])


def test_a_type_nests_so_deep_and_no_deeper() -> None:
    assert isinstance(spark_type(nested(MOST_NESTED)), DataType)
    for depth in (MOST_NESTED + 1, 500, 100_000):
        with pytest.raises(InvalidCallError, match=r"nest types at most 64|JSON text") as error:
            spark_type(nested(depth))
        assert len(str(error.value)) < 2000


def test_collations_are_refused_and_not_forgotten() -> None:
    for collated in (StructType([StructField("a", StringType("UNICODE_CI"))]), StringType("UNICODE_CI")):
        with pytest.raises(InvalidCallError, match=r"collations|collate"):
            declared(collated)
