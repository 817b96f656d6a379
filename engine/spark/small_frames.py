"""The driver fetches a small DataFrame as a whole, and appends it in threads: one Spark job with one stage
instead of a shuffle and a Python task per partition.

It is small where its plan says so, and where its rows then bear that out. A plan is asked only where its operators
make no more rows than they get, and cost little to run again: if there is more after all, it is evaluated once
more, for the shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from stratalog.engine.spark.appending import PARTITION, by_partition, in_order, refusals
from stratalog.engine.spark.given_up import given_up
from stratalog.engine.spark.key_hash import HASH_NAME
from stratalog.engine.spark.narrow import bounded_by_records
from stratalog.engine.spark.versions import repartition_by_id
from stratalog.partitions.errors import RetriableError

SMALL_BYTES = 1024 * 1024
"""By the statistics of its plan."""
SMALL_ROWS = 10_000
"""At most; and none of them wider than a narrow record is."""

_ROW_BY_ROW = {"Project", "Filter", "Union", "LocalRelation", "LogicalRelation", "Range", "InMemoryRelation"}
"""Operators of an optimized plan: without user code, shuffles, or rows that become several."""
_MOST_OPERATORS = 50


def small_batches(
    records: DataFrame, narrow: DataFrame, order_by: Sequence[str]
) -> dict[int, list[pa.RecordBatch]] | None:
    """The records by partition, in the order that ``run_appends`` would give them; None where it is not known that
    they are few. ``narrow`` are the same, by ``only_narrow``.

    Raises: WideRecordError where they are few, and not narrow; as ``count_records``.
    """
    if not _is_small(records):
        return None
    few = narrow.limit(SMALL_ROWS + 1)
    if order_by:
        few = in_order(few.coalesce(1), order_by)  # one task; the limit alone does not see to that
    with bounded_by_records(records.sparkSession):
        table = _table(few)
    return None if table.num_rows > SMALL_ROWS else _by_partition(table)


def fetched(records: DataFrame, partitions: int, order_by: Sequence[str]) -> dict[int, list[pa.RecordBatch]]:
    """All records by partition, however many: for executors that may not reach the storage.

    Raises: as ``count_records``.
    """
    if order_by:
        records = in_order(repartition_by_id(records, partitions, PARTITION), order_by)
    return _by_partition(_table(records))


def _table(records: DataFrame) -> pa.Table:
    with refusals(), given_up(RetriableError, "nothing was appended"):
        return records.toArrow()


def _by_partition(table: pa.Table) -> dict[int, list[pa.RecordBatch]]:
    return by_partition(table.drop_columns([PARTITION]), table.column(PARTITION))


def _is_small(frame: DataFrame) -> bool:
    """By its plan. A session of Spark Connect has none to look at."""
    query = getattr(frame, "_jdf", None)
    if query is None:
        return False
    plan = query.queryExecution().optimizedPlan()
    operators = [operator for operator, _ in zip(_operators(plan), range(_MOST_OPERATORS), strict=False)]
    if len(operators) == _MOST_OPERATORS or not _ROW_BY_ROW.issuperset(operators):
        return False
    return int(str(plan.stats().sizeInBytes())) <= SMALL_BYTES


def _operators(plan: Any) -> Iterator[str]:
    """The names of a LogicalPlan's operators, by py4j; the hash of keys is a column like any other."""
    name = plan.nodeName()
    if name == "ArrowEvalPython" and {one.name() for one in _elements(plan.udfs())} == {HASH_NAME}:
        name = "Project"
    yield name
    for child in _elements(plan.children()):
        yield from _operators(child)


def _elements(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
