"""Topics of every kind whose remote table other readers read, and the expected results.

A new kind is one more row of ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from stratalog.engine.admin.topics import create_topic
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.partitions.records import TIMESTAMP, physical_schema, type_to_json
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.segments import records

CATALOG, TABLE = "lake", "logs.t"

TYPED = pa.struct(
    [
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("small", pa.int16()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", TIMESTAMP),
        ("money", pa.decimal128(38, 10)),
        ("flag", pa.bool_()),
    ]
)
NESTED = pa.struct(
    [
        ("inner", pa.struct([("deep", pa.struct([("n", pa.int64())])), ("s", pa.string())])),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("lines", pa.list_(pa.field("element", pa.struct([("sku", pa.string()), ("count", pa.int32())])))),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)
WIDE = pa.struct([(f"c{number:03}", pa.int64() if number % 2 else pa.string()) for number in range(200)])
BEFORE = pa.struct([("n", pa.int64()), ("inner", pa.struct([("a", pa.string())]))])
AFTER = pa.struct(
    [("n", pa.int64()), ("inner", pa.struct([("a", pa.string()), ("b", pa.int32())])), ("y", pa.string())]
)

Row = tuple[int, Any]
"""Offset and value."""


def _typed(number: int) -> dict[str, Any] | None:
    if number == 3:
        return None
    return {
        "n": -number,
        "big": 2**53 + number,
        "small": number,
        "d": number / 8,
        "s": None if number == 1 else "é" * number,
        "raw": bytes([number, 255]),
        "day": date(1969, 12, 30 + number % 2),
        "at": datetime(2026, 1, 1, 0, 0, number, 999_999, tzinfo=UTC),
        "money": number * Decimal("123456789012345.0123456789"),
        "flag": number % 2 == 0,
    }


def _nested(number: int) -> dict[str, Any] | None:
    if number == 3:
        return None
    return {
        "inner": None if number == 2 else {"deep": {"n": number}, "s": str(number)},
        "tags": [str(number)] * number,
        "lines": None if number == 1 else [{"sku": "a", "count": number}, {"sku": None, "count": 0}],
        "labels": [("x", number), ("y", -number)],
    }


def _wide(number: int) -> dict[str, Any]:
    return {field.name: number if pa.types.is_integer(field.type) else str(number) for field in WIDE}


@dataclass(frozen=True, slots=True)
class Kind:
    value: pa.DataType
    make: Callable[[int], Any]
    later: pa.DataType | None = None
    """The type of the last two records, if it has grown."""
    then: Callable[[Path], None] = lambda table: None
    """Changes of the table by other programs."""
    keys: int | None = None
    """The topic is compacted: the last record of each of this number of keys, used in turn, is kept."""


def _grown(number: int) -> dict[str, Any]:
    return {"n": number, "inner": {"a": str(number), "b": number}, "y": "y"}


def _optimized(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


def _vacuumed(table: Path) -> None:
    DeltaTable(str(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


KINDS: Mapping[str, Kind] = {
    "bytes": Kind(pa.binary(), lambda number: None if number == 3 else b"\xff%d" % number),
    "text": Kind(pa.string(), lambda number: "é" * number),
    "typed": Kind(TYPED, _typed),
    "nested": Kind(NESTED, _nested),
    "wide": Kind(WIDE, _wide),
    "grown": Kind(BEFORE, _grown, later=AFTER),
    "compacted": Kind(NESTED, _nested, keys=2),
    "after a stranger's OPTIMIZE of what is compacted": Kind(TYPED, _typed, keys=2, then=_optimized),
    "after a stranger's OPTIMIZE": Kind(TYPED, _typed, then=_optimized),
    "after a stranger's VACUUM": Kind(TYPED, _typed, then=_vacuumed),
}
RECORDS = 6
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@dataclass(frozen=True, slots=True)
class Remote:
    """A completely tiered topic."""

    table: Path
    rows: Sequence[Row]
    """The rows as they were appended."""


def remote_of(kind: Kind, folder: Path, **configs: str) -> Remote:
    """A new cluster with topic ``t`` of that kind, with six remote segments of one record each."""
    live = LiveCluster(folder)
    with_ports(create_topic, ports_of(live.cluster))(
        "t",
        partitions=1,
        replication_factor=2,
        key_schema=None,
        value_schema=None if kind.value == pa.binary() else type_to_json(kind.value),
        configs={**TIERED, **({} if kind.keys is None else COMPACTED), **configs},
    )
    rows = []
    for number in range(RECORDS):
        of = kind.value
        if kind.later is not None and number >= RECORDS - 2:
            if number == RECORDS - 2:
                ports_of(live.cluster).metadata.submit(AlterTopic("t", value_schema=type_to_json(kind.later)))
            of = kind.later
        value = _of(kind.make(number), of)
        keys = None if kind.keys is None else [b"%d" % (number % kind.keys)]
        batch = records([value], keys=keys, schema=physical_schema(pa.binary(), of))
        live.cluster.append_batches("t", {0: [batch]}).raise_for_failures()
        rows.append((number, _of(value, kind.later or kind.value, fill=True)))
    live.cluster.tier("t").raise_for_failures()
    if kind.keys is not None:
        live.cluster.compact("t").raise_for_failures()
        rows = rows[-kind.keys - 1 :]  # the rule does not cover the last file
    table = live.remote / f"t-{live.cluster.image.topic('t').topic_id}"
    kind.then(table)
    live.cluster.tier("t").raise_for_failures()
    return Remote(table, rows)


def _of(value: Any, of: pa.DataType, *, fill: bool = False) -> Any:
    """The fields of the type; null if the value lacks them."""
    if isinstance(value, dict) and pa.types.is_struct(of):
        return {field.name: _of(value.get(field.name), field.type) for field in of}
    return value


def plain(value: Any) -> Any:
    """A value in one notation for all readers: a map as a dict, times in UTC."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            return dict(value)
        if value and all(isinstance(one, Mapping) and one.keys() == {"key", "value"} for one in value):
            return {one["key"]: one["value"] for one in value}
        return [plain(one) for one in value]
    return value
