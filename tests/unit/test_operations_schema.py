"""A topic's schema grows while it is in use: older producers, files and snapshots continue to work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stratalog.engine.admin.topics import alter_topic, create_topic
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.records import physical_schema, type_to_json
from stratalog.snapshots.reader import read_snapshot
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED, LiveCluster, rows_of, the_failure
from tests.unit.segments import records

KEY = pa.struct([("k", pa.int64())])
NARROW = pa.struct([("n", pa.int64()), ("in", pa.struct([("a", pa.string())]))])
WIDE = pa.struct(
    [("n", pa.int64()), ("in", pa.struct([("a", pa.string()), ("b", pa.int32())])), ("y", pa.string())]
)
OLD, NEW = {"n": 1, "in": {"a": "u"}}, {"n": 2, "in": {"a": "v", "b": 7}, "y": "w"}
OLD_READ = {"n": 1, "in": {"a": "u", "b": None}, "y": None}


class Typed(LiveCluster):
    """Topic ``t`` with keys ``KEY`` and values ``NARROW``."""

    def begin(self, *, partitions: int = 1, **configs: str) -> Typed:
        with_ports(create_topic, ports_of(self.cluster))(
            "t",
            partitions=partitions,
            replication_factor=2,
            key_schema=type_to_json(KEY),
            value_schema=type_to_json(NARROW),
            configs=TIERED | {name.replace("_", "."): text for name, text in configs.items()},
        )
        return self

    def grow(self, value: pa.DataType = WIDE) -> tuple[str, ...]:
        return ports_of(self.cluster).metadata.submit(AlterTopic("t", value_schema=type_to_json(value)))

    def put(self, value: Mapping[str, Any] | None, of: pa.DataType, *, key: int = 0, partition: int = 0) -> None:
        """Append one record by a producer that knows the type ``of``."""
        row = records([value], keys=[{"k": key}], schema=physical_schema(KEY, of))
        self.cluster.append_batches("t", {partition: [row]}).raise_for_failures()

    def fetched(self, partition: int = 0) -> list[Any]:
        """All values by offset, fetched one by one, each with the topic's current type."""
        found: list[Any] = []
        while (records := self.cluster.fetch("t", partition, len(found), max_bytes=1)).records.num_rows:
            assert records.records.schema.field("value").type == WIDE
            found += records.records.column("value").to_pylist()
        return found


@pytest.fixture
def live(tmp_path: Path) -> Typed:
    return Typed(tmp_path, brokers=2)


def test_producers_of_both_schemas_continue_side_by_side(live: Typed) -> None:
    live.begin().put(OLD, NARROW)
    assert live.grow() == ("value.in.b", "value.y")
    live.put(NEW, WIDE)
    live.put(OLD, NARROW)
    live.put(None, NARROW)
    assert live.fetched() == [OLD_READ, NEW, OLD_READ, None]
    live.cluster.verify().raise_for_failures()


@pytest.mark.parametrize(
    "of",
    [
        pa.struct([("n", pa.int64())]),
        pa.struct([("n", pa.int64()), ("in", pa.struct([("b", pa.int32())]))]),
        pa.struct([*WIDE, ("z", pa.string())]),
    ],
    ids=["a part of the older one", "without the first field", "with a field that was not declared"],
)
def test_a_batch_may_have_an_earlier_form_of_the_declared_schema(live: Typed, of: pa.DataType) -> None:
    """Arrow batches have schemas: fields that are missing at the end are left out intentionally."""
    live.begin().grow()
    if of.num_fields == 1:
        live.put({"n": 1}, of)
        assert live.fetched() == [{"n": 1, "in": None, "y": None}]
    else:
        with pytest.raises(
            InvalidRecordError, match=r"append to t-0: column 'value' is|the topic has no field 'value.z'"
        ):
            live.put(None, of)


def test_nothing_changes_without_a_schema_and_in_a_dry_run(live: Typed) -> None:
    live.begin()
    ports = ports_of(live.cluster)
    with live.unchanged():
        with pytest.raises(InvalidCallError, match="topic 't': give the type of its keys or values"):
            alter_topic(ports.metadata, ports.execution, "t")
        planned = alter_topic(ports.metadata, ports.execution, "t", value_schema=type_to_json(WIDE), dry_run=True)
        assert [row["field"] for row in planned.rows] == ["value.in.b", "value.y"]
        narrower = type_to_json(pa.struct([("n", pa.int64())]))
        with pytest.raises(InvalidCallError, match="would be removed"):
            alter_topic(ports.metadata, ports.execution, "t", value_schema=narrower)


def test_merged_files_hold_what_both_schemas_held(live: Typed) -> None:
    """This is so even if the older producer was the last one."""
    live.begin(segment_bytes="1000000").put(OLD, NARROW)
    live.grow()
    live.put(NEW, WIDE)
    live.put(OLD, NARROW)
    live.clock.advance_ms(30 * 24 * 3600 * 1000)  # longer than segment.ms
    live.cluster.merge().raise_for_failures()
    assert len(live.log(live.leader()).chain) == 1
    assert live.fetched() == [OLD_READ, NEW, OLD_READ]
    live.cluster.replicate().raise_for_failures()
    live.cluster.verify().raise_for_failures()


@pytest.mark.slow
def test_other_readers_of_the_remote_table_see_what_ours_do(live: Typed) -> None:
    """Two partitions, files of both schemas, and some that have left the table: deltalake and polars agree."""
    live.begin(partitions=2, file_delete_delay_ms="0")
    for partition in (0, 1):
        live.put(OLD, NARROW, partition=partition)
        live.put(None, NARROW, partition=partition)
    live.cluster.tier().raise_for_failures()
    live.grow()
    for partition in (0, 1):
        live.put(NEW, WIDE, partition=partition)
        live.put(OLD, NARROW, partition=partition)
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 1}).raise_for_failures()
    live.cluster.retain().raise_for_failures()
    table = ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("t"))
    rows = [
        (0, 1, None),
        (0, 2, NEW),
        (0, 3, OLD_READ),
        (1, 0, OLD_READ),
        (1, 1, None),
        (1, 2, NEW),
        (1, 3, OLD_READ),
    ]

    found = DeltaTable(table.uri).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert found.schema.field("value").type == WIDE
    assert [(row["partition"], row["offset"], row["value"]) for row in found.to_pylist()] == rows

    wanted = ("partition", "offset", "value")
    eager = polars.read_delta(table.uri).sort("partition", "offset")
    assert [tuple(row[name] for name in wanted) for row in eager.to_dicts()] == rows
    lazy = polars.scan_delta(table.uri).filter(polars.col("offset") >= 2, polars.col("partition") == 1)
    fields = lazy.select("offset", polars.col("value").struct.field("y")).sort("offset").collect()
    assert fields.rows() == [(2, "w"), (3, None)]


def snapshot_of(live: Typed) -> list[tuple[int, Any]]:
    """Keys and values of the latest snapshot."""
    replica = live.replica(live.leader())
    _, stored = live.log(live.leader()).listing.checkpoints[-1]
    read = read_snapshot(replica.store, replica.folder, stored, owner=replica.topic_id, partition=0)
    rows = pa.Table.from_batches(list(read.batches())).to_pylist()
    return [(row["key"]["k"], row["value"]) for row in rows]


def test_a_snapshot_of_both_schemas_has_the_wider_one(live: Typed) -> None:
    """A second snapshot is made on top of a snapshot of the older schema."""
    live.begin(cleanup_policy="snapshot", remote_storage_enable="false")
    for key in range(3):
        live.put(OLD, NARROW, key=key)
    assert rows_of(live.cluster.snapshot("t", by_hand=True), "records") == [(3,)]
    live.grow()
    live.put(NEW, WIDE, key=1)
    live.put(OLD, NARROW, key=3)
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    assert snapshot_of(live) == [(0, OLD_READ), (2, OLD_READ), (1, NEW), (3, OLD_READ)]


def test_a_snapshot_run_that_began_before_the_schema_grew_drops_no_field(
    live: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields that the older schema lacks would be lost when the log below the snapshot is deleted."""
    live.begin(cleanup_policy="snapshot", remote_storage_enable="false").put(OLD, NARROW)
    late = live.driver()
    image = late.image
    live.grow()
    live.put(NEW, WIDE, key=1)
    monkeypatch.setattr(ports_of(late).metadata, "image", lambda *_: image)
    assert "STALE_METADATA" in the_failure(late.snapshot("t", by_hand=True, check=False))
    assert not live.log(live.leader()).listing.checkpoints
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    assert snapshot_of(live) == [(0, OLD_READ), (1, NEW)]


def test_a_tier_run_that_began_before_the_schema_grew_leaves_a_table_that_has_the_field(
    live: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's upload contains the records appended since, and no later run may have a reason to commit."""
    live.begin().put(OLD, NARROW)
    live.cluster.tier().raise_for_failures()
    late = live.driver()
    fresh, images = ports_of(late).metadata.image, [late.image]
    live.grow()
    live.put(NEW, WIDE)
    monkeypatch.setattr(ports_of(late).metadata, "image", lambda *_: images.pop() if images else fresh())
    assert late.tier().raise_for_failures().totals["uploaded_files"] == 1
    assert not images
    found = DeltaTable(
        ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("t")).uri
    ).to_pyarrow_table()
    assert found.sort_by("offset").column("value").to_pylist() == [OLD_READ, NEW]
