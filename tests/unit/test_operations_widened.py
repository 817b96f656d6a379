"""A topic's types become wider while it is in use: older files, producers and snapshots continue to work, in all
readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from stratalog.engine.admin.topics import alter_topic, create_topic
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import physical_schema, type_to_json
from stratalog.snapshots.reader import read_snapshot
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.segments import records

NARROW = pa.struct(
    [
        ("tiny", pa.int8()),
        ("n", pa.int32()),
        ("f", pa.float32()),
        ("in", pa.struct([("s", pa.int16())])),
    ]
)
WIDE = pa.struct(
    [
        ("tiny", pa.int32()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("in", pa.struct([("s", pa.int64()), ("new", pa.string())])),
    ]
)
OLD: dict[str, Any] = {"tiny": -7, "n": 1, "f": 1.5, "in": {"s": 3}}
OLD_READ = {**OLD, "in": {"s": 3, "new": None}}
NEW: dict[str, Any] = {
    "tiny": 70_000,
    "n": 2**40,
    "f": 0.1,
    "in": {"s": -(2**40), "new": "w"},
}
PRICED, FINER = (pa.struct([("p", pa.decimal128(9, 2))]), pa.struct([("p", pa.decimal128(20, 4))]))
DATED, TIMED = pa.struct([("d", pa.date32())]), pa.struct([("d", pa.timestamp("us"))])


class Typed(LiveCluster):
    """Topic ``t`` with values of a type, which becomes wider."""

    def begin(self, value: pa.DataType = NARROW, **configs: str) -> Typed:
        with_ports(create_topic, ports_of(self.cluster))(
            "t",
            partitions=1,
            replication_factor=2,
            key_schema=type_to_json(pa.int64()),
            value_schema=type_to_json(value),
            configs=TIERED | {name.replace("_", "."): text for name, text in configs.items()},
        )
        return self

    def widen(self, value: pa.DataType = WIDE) -> tuple[str, ...]:
        return ports_of(self.cluster).metadata.submit(AlterTopic("t", value_schema=type_to_json(value)))

    def put(self, value: Mapping[str, Any] | None, of: pa.DataType, *, key: int = 0) -> None:
        """Append one record by a producer that knows the type ``of``."""
        row = records([value], keys=[key], schema=physical_schema(pa.int64(), of))
        self.cluster.append_batches("t", {0: [row]}).raise_for_failures()

    def values(self) -> list[Any]:
        """All values by offset, fetched one by one."""
        found: list[Any] = []
        kinds = set()
        while (fetched := self.cluster.fetch("t", 0, len(found), max_bytes=1)).records.num_rows:
            kinds.add(fetched.records.schema.field("value").type)
            found += fetched.records.column("value").to_pylist()
        assert len(kinds) == 1
        return found

    @property
    def table(self) -> str:
        return ports_of(self.cluster).storage.remote_table(self.cluster.image.topic("t")).uri


@pytest.fixture
def live(tmp_path: Path) -> Typed:
    return Typed(tmp_path, brokers=2)


def test_older_records_and_producers_continue_after_a_type_became_wider(live: Typed) -> None:
    live.begin().put(OLD, NARROW)
    assert live.widen() == ("value.tiny", "value.n", "value.f", "value.in.s", "value.in.new")
    assert live.widen() == ()
    live.put(NEW, WIDE)
    live.put(OLD, NARROW)
    live.cluster.produce("t", [{"tiny": 1, "n": 2, "f": 3.0, "in": {"s": 5, "new": None}}])
    assert live.values()[:3] == [OLD_READ, NEW, OLD_READ]
    tailed = pa.concat_tables(live.cluster.tail("t", start="earliest", follow=False))
    assert tailed.schema.field("value").type == WIDE
    assert tailed.column("value").to_pylist() == live.values()
    live.clock.advance_ms(30 * 24 * 3600 * 1000)  # longer than segment.ms
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.values()[:3] == [OLD_READ, NEW, OLD_READ]


def tiered(live: Typed) -> None:
    """Segments of both types in the remote tier alone, and a merged one."""
    live.put(OLD, NARROW)
    live.put(None, NARROW)
    live.cluster.tier().raise_for_failures()
    live.widen()
    live.put(NEW, WIDE)
    live.put(OLD, NARROW)
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()


def test_deltalake_reads_both_types_in_the_remote_table(live: Typed) -> None:
    tiered(live.begin())
    assert live.values() == [OLD_READ, None, NEW, OLD_READ]
    table = DeltaTable(live.table)
    assert "typeWidening" not in (table.protocol().reader_features or [])
    found = table.to_pyarrow_table().sort_by("offset")
    assert found.schema.field("value").type == WIDE
    assert found.column("value").to_pylist() == [OLD_READ, None, NEW, OLD_READ]
    big = table.to_pyarrow_dataset().to_table(filter=pc.field("value", "n") > 2**33)
    assert big.column("offset").to_pylist() == [2]
    some = QueryBuilder().register("t", table)
    for where, offsets in (("value['n'] = 1", [0, 3]), ("value['f'] < 0.2", [2])):
        rows = some.execute(f'SELECT "offset" FROM t WHERE {where} ORDER BY 1').read_all()
        assert [value.as_py() for value in rows.column(0)] == offsets
    live.cluster.verify(deep=True).raise_for_failures()


def test_polars_reads_both_types_in_the_remote_table(live: Typed) -> None:
    tiered(live.begin())
    value = polars.col("value").struct
    for where, offsets in ((value.field("n") == 1, [0, 3]), (value.field("n") > 2**33, [2])):
        found = polars.scan_delta(live.table).filter(where).select("offset", "value").sort("offset").collect()
        assert found["offset"].to_list() == offsets
        assert found["value"].to_list() == [{0: OLD_READ, 2: NEW, 3: OLD_READ}[offset] for offset in offsets]


def test_a_date_becomes_a_timestamp_and_polars_own_reader_refuses_it(live: Typed) -> None:
    live.begin(DATED).put({"d": date(2013, 1, 5)}, DATED)
    live.cluster.tier().raise_for_failures()
    live.widen(TIMED)
    live.put({"d": datetime(2013, 1, 5, 12)}, TIMED)
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    expected = [{"d": datetime(2013, 1, 5)}, {"d": datetime(2013, 1, 5, 12)}]
    assert live.values() == expected
    table = DeltaTable(live.table)
    assert table.protocol().reader_features == ["timestampNtz"]
    assert table.to_pyarrow_table().sort_by("offset").column("value").to_pylist() == expected
    by_arrow = polars.read_delta(live.table, use_pyarrow=True).sort("offset")
    assert by_arrow["value"].to_list() == expected
    with pytest.raises(polars.exceptions.SchemaError, match="Date != target: Datetime"):
        polars.scan_delta(live.table).collect()


def test_a_decimal_becomes_larger_with_its_scale_and_polars_own_reader_refuses_it(live: Typed) -> None:
    live.begin(PRICED).put({"p": Decimal("9999999.99")}, PRICED)
    live.cluster.tier().raise_for_failures()
    live.widen(FINER)
    live.put({"p": Decimal("123456789012.3456")}, FINER)
    live.put({"p": Decimal("-1.25")}, PRICED)
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    expected = [{"p": Decimal(text)} for text in ("9999999.9900", "123456789012.3456", "-1.2500")]
    assert live.values() == expected
    table = DeltaTable(live.table)
    assert table.to_pyarrow_table().sort_by("offset").column("value").to_pylist() == expected
    large = table.to_pyarrow_dataset().to_table(filter=pc.field("value", "p") < Decimal("50000000.0000"))
    assert sorted(large.column("offset").to_pylist()) == [0, 2]
    some = QueryBuilder().register("t", table)
    for where, offsets in (
        ("value['p'] = CAST('9999999.99' AS DECIMAL(20, 4))", [0]),
        ("value['p'] < 50000000.00", [0, 2]),
    ):
        rows = some.execute(f'SELECT "offset" FROM t WHERE {where} ORDER BY 1').read_all()
        assert [value.as_py() for value in rows.column(0)] == offsets
    by_arrow = polars.read_delta(live.table, use_pyarrow=True).sort("offset")
    assert by_arrow["value"].to_list() == expected
    with pytest.raises(polars.exceptions.SchemaError):
        polars.scan_delta(live.table).collect()
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_snapshot_of_both_types_has_the_wider_one(live: Typed) -> None:
    live.begin(cleanup_policy="snapshot", remote_storage_enable="false")
    for key in range(3):
        live.put(OLD, NARROW, key=key)
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    live.widen()
    live.put(NEW, WIDE, key=1)
    live.put(OLD, NARROW, key=3)
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    replica = live.replica(live.leader())
    _, stored = live.log(live.leader()).listing.checkpoints[-1]
    read = read_snapshot(replica.store, replica.folder, stored, owner=replica.topic_id, partition=0)
    rows = pa.Table.from_batches(list(read.batches())).to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {0: OLD_READ, 1: NEW, 2: OLD_READ, 3: OLD_READ}


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        (NARROW, WIDE, OLD),
        (DATED, TIMED, {"d": date(2013, 1, 5)}),
        (PRICED, FINER, {"p": Decimal("-1234567.89")}),
    ],
)
def test_an_append_that_is_retried_after_the_type_became_wider_is_known(
    live: Typed, before: pa.DataType, after: pa.DataType, value: dict[str, Any]
) -> None:
    """The retry may also come from a driver that casts its records to the wider type."""
    live.begin(before)
    row = records([value], keys=[0], schema=physical_schema(pa.int64(), before))

    def append(batch: pa.RecordBatch) -> object:
        report = live.cluster.append_batches("t", {0: [batch]}, producer="p", sequence=0)
        return report.raise_for_failures().rows[0]["outcome"]

    assert append(row) == "acknowledged"
    live.widen(after)
    assert append(row) == "duplicate"
    wide = physical_schema(pa.int64(), after)
    assert append(row.cast(pa.schema([wide.field(name) for name in row.schema.names]))) == "duplicate"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pa.int32(), "value is struct<.*>, and cannot become int32"),
        (pa.struct([*NARROW][:1]), "value.n would be removed"),
        (pa.struct([("tiny", pa.float64()), *[*NARROW][1:]]), "value.tiny is int8, and cannot become"),
    ],
)
def test_a_type_that_is_not_wider_is_refused(live: Typed, value: pa.DataType, message: str) -> None:
    live.begin()
    with live.unchanged(), pytest.raises(InvalidCallError, match=message):
        live.widen(value)


def test_a_key_keeps_its_type(live: Typed) -> None:
    """The hash of the key selects the partition."""
    ports = ports_of(live.cluster)
    with_ports(create_topic, ports)("k", partitions=1, key_schema=type_to_json(pa.int32()))
    with pytest.raises(
        InvalidCallError, match="key is int32, and cannot become int64; a key can only get nullable fields"
    ):
        alter_topic(ports.metadata, ports.execution, "k", key_schema=type_to_json(pa.int64()))


def test_a_table_that_others_have_changed_keeps_that_when_it_becomes_wider(live: Typed) -> None:
    live.begin().put(OLD, NARROW)
    live.cluster.tier().raise_for_failures()
    before = DeltaTable(live.table)
    before.alter.set_table_properties({"custom.owner": "ops"}, raise_if_not_exists=False)
    live.widen()
    live.put(NEW, WIDE)
    live.cluster.tier().raise_for_failures()
    after = DeltaTable(live.table)
    assert after.metadata().configuration["custom.owner"] == "ops"
    assert after.metadata().id == before.metadata().id
    assert after.metadata().created_time == before.metadata().created_time
    live.cluster.verify(deep=True).raise_for_failures()
