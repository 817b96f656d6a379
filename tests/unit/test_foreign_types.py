"""Frames of Arrow, pandas and polars are accepted without loss, or refused with an error of stratalog."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stratalog.engine.records.tables import plain_type, to_arrow
from stratalog.engine.spark.types import spark_type
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.records import HEADERS, TIMESTAMP, type_to_json
from tests.unit.cluster_harness import LiveCluster


def _dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), values)


TEXTS = pa.array(["a", "b"])
TAKEN: dict[str, tuple[pa.Array, list[Any]]] = {
    **{
        f"dictionary of {kind}": (_dictionary(pa.array(["a", "b"], kind)), ["b", "a", None])
        for kind in (pa.string(), pa.large_string(), pa.string_view())
    },
    **{
        f"dictionary of {kind}": (_dictionary(pa.array([b"a", b"b"], kind)), [b"b", b"a", None])
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
    },
    "run ends": (pa.RunEndEncodedArray.from_arrays([2, 3], TEXTS), ["a", "a", "b"]),
    "a slice of run ends": (pa.RunEndEncodedArray.from_arrays([2, 4], TEXTS)[1:], ["a", "b", "b"]),
    "run ends of views": (
        pa.RunEndEncodedArray.from_arrays([2, 3], TEXTS.cast(pa.string_view())),
        ["a", "a", "b"],
    ),
    "list view": (pa.array([[1], [2, 3], None], pa.list_view(pa.int32())), [[1], [2, 3], None]),
    "large list view": (pa.array([[1], None, []], pa.large_list_view(pa.int32())), [[1], None, []]),
    "fixed lists": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], None, [3, 4]]),
    "large lists": (pa.array([[1], None, []], pa.large_list(pa.int32()))[:3], [[1], None, []]),
    "lists of dictionaries": (
        pa.array([["a"], None, []], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        [["a"], None, []],
    ),
    "structs of dictionaries": (
        pa.StructArray.from_arrays([_dictionary(TEXTS)], ["x"]),
        [{"x": "b"}, {"x": "a"}, {"x": None}],
    ),
    "maps of views": (
        pa.array([[("a", "b")], None, []], pa.map_(pa.string_view(), pa.string_view())),
        [[("a", "b")], None, []],
    ),
    "a slice of maps": (
        pa.array([[("z", "z")], [("a", "b")], None, []], pa.map_(pa.large_string(), pa.string()))[1:],
        [[("a", "b")], None, []],
    ),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())), [True, False, None]),
    "json": (pa.array(["{}", None, "1"], pa.json_(pa.string())), ["{}", None, "1"]),
    "uuid": (pa.array([b"a" * 16] * 3, pa.uuid()), [b"a" * 16] * 3),
    **{
        str(kind): (pa.array([Decimal("1.25")] * 3, kind), [Decimal("1.25")] * 3)
        for kind in (pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal256(5, 2))
    },
}
REFUSED: dict[str, pa.Array] = {
    "duration": pa.array([1, 2, 3], pa.duration("s")),
    "interval": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
    "wide decimal": pa.array([Decimal(1)] * 3, pa.decimal256(76, 2)),
    "time": pa.array([1, 2, 3], pa.time64("us")),
    "half": pa.array(np.array([1, 2, 3], np.float16)),
    "sparse union": pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [pa.array([1, 2, 3])]),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array([1, 2, 3])]
    ),
    "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "t", "v"), pa.array(["a"] * 3)),
    "empty structs": pa.array([{}, {}, None], pa.struct([])),
    "null": pa.nulls(3),
    "lists of null": pa.array([[None], [], None], pa.list_(pa.null())),
    "structs of null": pa.StructArray.from_arrays([pa.nulls(3)], ["x"]),
}
EVERY = {**{name: array for name, (array, _) in TAKEN.items()}, **REFUSED}
DECLARED = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "long": pa.int64(),
    "list": pa.list_(pa.int32()),
    "struct": pa.struct([("x", pa.string())]),
    "map": pa.map_(pa.string(), pa.string()),
}
NESTED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda array: array,
    "in a struct": lambda array: pa.StructArray.from_arrays([array], ["x"]),
    "in lists": lambda array: pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), array),
    "in maps": lambda array: pa.MapArray.from_arrays([0, 1, 1, 3], pa.array(["p", "q", "r"]), array),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("name", TAKEN)
def test_a_value_in_another_layout_is_the_same_value(name: str, nested: str) -> None:
    array, values = TAKEN[name]
    there = NESTED[nested](array)
    plain = to_arrow(pa.table({"c": there}), "it", "").column("c")
    plain.validate(full=True)
    assert plain.type == plain_type(there.type)
    expected = pa.array(values, plain_type(array.type))
    assert plain.to_pylist() == NESTED[nested](expected).to_pylist()


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path)
    for name, kind in DECLARED.items():
        declared = None if name == "bytes" else spark_type(type_to_json(kind))
        made.cluster.topics.create(name, partitions=1, replication_factor=2, key=declared, value=declared)
    return made


def test_every_type_is_taken_or_refused_in_our_words(live: LiveCluster) -> None:
    """Each type is used as a key, as a value, and nested, through both ways to append."""
    chance = random.Random(7)
    cases = [(name, nested) for name in EVERY for nested in NESTED]
    for name, nested in chance.choices(cases, k=200):
        array = NESTED[nested](EVERY[name])
        topic = chance.choice([*DECLARED])
        column = chance.choice(["key", "value"])
        other = pa.nulls(len(array), plain_type(DECLARED[topic]))
        given = {"key": other, "value": other, column: array}
        columns = {"timestamp": pa.nulls(len(array), TIMESTAMP), **given, "headers": pa.nulls(len(array), HEADERS)}
        policy = chance.choice(["fail", "drop", "add"])
        how: Any = {"on_unknown_field": policy}
        produce = partial(live.cluster.produce, topic, pa.table(given), key="key", value="value", **how)
        batches = {0: [pa.RecordBatch.from_pydict(columns)]}
        for way in (produce, partial(live.cluster.append_batches, topic, batches, **how)):
            try:
                way().raise_for_failures()
            except StratalogError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} {nested} as the {column} of {topic}, {policy}") from error


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"value": ["a", "b"]}, schema={"value": pl.Categorical}),
        pl.DataFrame({"value": ["a", "b"]}, schema={"value": pl.Enum(["a", "b"])}),
        pd.DataFrame({"value": pd.Categorical(["a", "b"])}),
    ],
)
def test_categories_are_texts(live: LiveCluster, frame: Any) -> None:
    live.cluster.produce("text", frame, value="value").raise_for_failures()
    assert live.cluster.fetch("text", 0, 0).records.column("value").to_pylist() == ["a", "b"]


def test_objects_of_polars_are_refused(live: LiveCluster) -> None:
    frame = pl.DataFrame({"value": [object(), object()]}, schema={"value": pl.Object})
    with pytest.raises(StratalogError):
        live.cluster.produce("text", frame)
