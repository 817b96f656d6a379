"""The view of both tiers, without Spark: nothing that it needs is dropped in vain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from stratalog.engine.spark.catalog import create_view
from stratalog.engine.spark.format import TABLE
from stratalog.partitions.errors import InvalidCallError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster

TAIL = StructType([StructField("topic", StringType(), metadata={TABLE: "{}"})])


class Session:
    """A session whose catalog has every table, at the location that was named last. It records statements."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.can_load = True
        self.conf = SimpleNamespace(get=lambda _, default: default)
        self.catalog = SimpleNamespace(tableExists=lambda _: True)
        self.dataSource = SimpleNamespace(register=lambda _: None)
        self.read = SimpleNamespace(format=lambda _: SimpleNamespace(options=self._options))

    def table(self, _: str) -> Any:
        return SimpleNamespace(schema=TAIL)

    def sql(self, text: str) -> Any:
        self.statements.append(" ".join(text.split()[:2]))
        location = text.partition("LOCATION '")[2].rstrip("'")
        if location:
            self._location = location
        return SimpleNamespace(collect=lambda: [("Location", self._location)])

    def _options(self, **given: str) -> Any:
        return SimpleNamespace(load=self._load)

    def _load(self) -> Any:
        if not self.can_load:
            raise InvalidCallError("no provider of this name")
        return SimpleNamespace(schema=TAIL)


def test_the_tail_of_a_view_is_dropped_only_if_its_successor_can_be_made(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered(segment_bytes="1")
    live.fill("ab")
    live.cluster.tier("t").raise_for_failures()
    ports, session = ports_of(live.cluster), Session()

    def create() -> None:
        one: Any = session
        given = ports.metadata, ports.storage, ports.memory, one
        create_view(*given, "now", "t", table=None, credentials="no.such:provider")

    create()
    made = ["CREATE TABLE", "DESCRIBE TABLE", "DROP TABLE", "CREATE TABLE", "CREATE OR"]
    assert session.statements == made
    session.statements.clear()
    session.can_load = False
    with pytest.raises(InvalidCallError, match="no provider"):
        create()
    assert session.statements == made[:2]
