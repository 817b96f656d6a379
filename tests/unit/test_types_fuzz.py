"""Every array of Arrow is appended and read back equal, or refused with an error of stratalog: never changed,
never a foreign error. Random types, layouts and values (``types_fuzz``), by seed.
"""

from __future__ import annotations

import math
import random
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stratalog import Cluster
from stratalog.engine.records.tables import plain_type
from stratalog.engine.spark.types import spark_type
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.records import HEADERS, TIMESTAMP, type_to_json
from tests.depth import at_depth
from tests.unit.cluster_harness import LiveCluster
from tests.unit.types_fuzz import array_of

SEEDS = at_depth(test=10, nightly=400)
CASES = 30
"""The number of cases per seed."""
DECLARED = [
    *(pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.decimal128(10, 2), pa.bool_(), pa.date32()),
    *(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.list_(pa.int64()), pa.map_(pa.string(), pa.string())),
    pa.struct([("x", pa.string())]),
]
"""Types of topics that most arrays do not have."""


def same(given: Any, got: Any) -> bool:
    """Whether a read value equals the appended one, in the type of its topic."""
    match given, got:
        case None, None:
            return True
        case (None, _) | (_, None):
            return False
        case UUID(), _:
            return given.bytes == got
        case (str(), bytes()):
            return given.encode() == got
        case dict(), dict():
            return given.keys() <= got.keys() and all(same(given.get(name), got[name]) for name in got)
        case ((list() | tuple()), (list() | tuple())):
            return len(given) == len(got) and all(map(same, given, got))
        case (datetime() | pd.Timestamp(), datetime() | pd.Timestamp()):
            return utc(given) == utc(got)
        case (float() | int() | Decimal(), float() | int() | Decimal()):
            return bool(given == got) or (math.isnan(given) and math.isnan(got))
    return type(given) is type(got) and bool(given == got)


_NOT_POLARS = re.compile("union|run_end|extension|interval|decimal|map<|fixed_size_binary")
"""Types for which polars panics."""


_OTHER = re.compile("is not an Arrow table|the topic has no field|can be partitioned only by Spark")
"""Refusals for other reasons than the type of a column: a broken frame, fields, keys."""


def utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


class Topics:
    """Topics by the types of their keys and values, created on demand; each gets one append."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._made = cluster, 0

    def of(self, kind: pa.DataType | None) -> tuple[str, pa.DataType]:
        """Name and type; None: bytes. Raises: StratalogError if no topic can have such a type."""
        self._made += 1
        declared = None if kind is None else spark_type(type_to_json(kind))
        self.cluster.topics.create(
            f"t{self._made}", partitions=1, replication_factor=1, key=declared, value=declared
        )
        return f"t{self._made}", pa.binary() if kind is None else kind


def frame(chance: random.Random, table: pa.Table) -> Any:
    """The table as a frame of one of the libraries; of Arrow if the other has no such types."""
    try:
        match chance.choice(["arrow", "batch", "polars", "pandas"]):
            case "polars" if not _NOT_POLARS.search(str(table.schema)):
                return pl.from_arrow(table)
            case "pandas":
                made = table.to_pandas(types_mapper=pd.ArrowDtype)
                back = pa.Table.from_pandas(made, preserve_index=False)
                same_values = all(
                    back.column(name).to_pylist() == table.column(name).to_pylist() for name in back.column_names
                )
                return made if same_values else table  # pandas may have changed them already
            case "batch":
                return table.to_batches()[0]
    except (pa.ArrowException, NotImplementedError, pl.exceptions.PolarsError):
        pass
    return table


@pytest.mark.parametrize("seed", range(SEEDS))
def test_values_come_back_equal_or_are_refused_in_our_words(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    topics = Topics(LiveCluster(tmp_path).cluster)
    assert [why for _ in range(CASES) if (why := fault(chance, topics)) is not None] == []


def fault(chance: random.Random, topics: Topics) -> str | None:
    """The fault of the answer to one random array; None if it is right."""
    array = array_of(chance, chance.choice([1, 3, 5]))
    try:
        topic, kind = topics.of(chance.choice([*[plain_type(array.type)] * len(DECLARED), *DECLARED, None]))
    except StratalogError:
        topic, kind = topics.of(chance.choice(DECLARED))
    column = chance.choice(["key", "value"])
    other = pa.nulls(len(array), kind)
    columns = {"timestamp": pa.nulls(len(array), TIMESTAMP), "key": other, "value": other, column: array}
    text = f"{array.type} as the {column} of {kind}: {array.to_pylist()}"
    try:
        if chance.random() < 0.5:
            batch = pa.RecordBatch.from_pydict({**columns, "headers": pa.nulls(len(array), HEADERS)})
            topics.cluster.append_batches(topic, {0: [batch]})
        else:
            topics.cluster.produce(topic, frame(chance, pa.table(columns)))
    except StratalogError as error:
        seen = str(error).replace("<element: ", "<item: ")
        if _OTHER.search(seen):
            return None
        named = column in seen and any(str(one) in seen for one in (kind, array.type, plain_type(array.type)))
        return None if named else f"{text}: {error}"
    except Exception as error:
        return f"{text}: {type(error)}: {error}"
    found = topics.cluster.fetch(topic, 0, 0).records.column(column).to_pylist()
    return None if same(array.to_pylist(), found) else f"{text}: {found}"
