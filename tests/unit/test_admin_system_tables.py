"""The state of a cluster as tables with declared columns."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from stratalog.engine.admin.system_tables import OFFSETS, SYSTEM_TABLES, offset_rows
from stratalog.partitions.errors import UnknownTopicOrPartitionError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """Topic ``t``, tiered: four records in partition 0, two of them only local; ``u`` with a record. ``g`` has
    committed for ``t``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATALOG_HISTORY", "on")
        made = LiveCluster(tmp_path_factory.mktemp("tables"), on_disk=True)
    made.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    made.tiered(partitions=2)
    made.fill("ab")
    made.cluster.tier().raise_for_failures()
    made.cluster.retain().raise_for_failures()
    made.append({0: ["c", "d"]}).raise_for_failures()
    made.topic("u", copies=2)
    made.append({0: ["x"]}, topic="u").raise_for_failures()
    made.cluster.groups.commit("g", {("t", 0): 1}).raise_for_failures()
    return made


def rows(live: LiveCluster, table: str, topic: str | None = None) -> list[dict[str, object]]:
    return [dict(row) for row in with_ports(SYSTEM_TABLES[table].rows, ports_of(live.cluster))(topic)]


@pytest.mark.parametrize("table", SYSTEM_TABLES)
@pytest.mark.slow
def test_every_column_that_a_row_has_is_declared(live: LiveCluster, table: str) -> None:
    """A new column of a report must have a type here, too; and every declared column must occur in a row."""
    found = rows(live, table)
    assert list(dict.fromkeys(name for row in found for name in row)) == list(SYSTEM_TABLES[table].types)
    python = {"STRING": str, "INT": int, "BIGINT": int, "TIMESTAMP": datetime}
    python |= {"MAP<STRING, BIGINT>": dict, "ARRAY<STRING>": list}
    for row in found:
        for name, value in row.items():
            assert value is None or type(value) is python[SYSTEM_TABLES[table].types[name]]


def test_a_topic_limits_each_of_them(live: LiveCluster) -> None:
    for table in SYSTEM_TABLES.keys() - {"operations"}:
        everything = rows(live, table)
        assert rows(live, table, "t") == [row for row in everything if row["topic"] == "t"] != []
        assert {row["topic"] for row in everything} >= ({"t"} if table == "groups" else {"t", "u"})
    with pytest.raises(UnknownTopicOrPartitionError):
        rows(live, "files", "nothing")
    named = [row["operation"] for row in rows(live, "operations", "t")]
    assert named == ["retain", "tier", "topics create"]
    assert rows(live, "operations", "u") == rows(live, "operations")[:1]


def test_files_of_both_tiers_are_those_that_a_read_is_sent_to(live: LiveCluster) -> None:
    found = [
        (row["partition"], row["start_offset"], row["end_offset"], row["tier"]) for row in rows(live, "files", "t")
    ]
    assert found == [(0, 0, 1, "remote"), (0, 1, 2, "local"), (0, 2, 4, "local")]


def test_a_group_has_its_lag_in_every_partition_of_its_topics(live: LiveCluster) -> None:
    found = [(row["group_id"], row["partition"], row["committed"], row["lag"]) for row in rows(live, "groups")]
    assert found == [("g", 0, 1, 3), ("g", 1, None, 0)]


def test_a_tiered_topic_says_where_its_table_is_and_how_far_it_goes(live: LiveCluster) -> None:
    (of_t,) = rows(live, "topics", "t")
    (of_u,) = rows(live, "topics", "u")
    assert Path(str(of_t["table_uri"]).removeprefix("file://")) in live.remote.iterdir()
    assert of_t["table_end"] == "0:2"
    assert (of_u["table_uri"], of_u["table_end"]) == (None, None)


def test_a_replica_that_cannot_be_inspected_has_nulls_and_its_role_says_so(live: LiveCluster) -> None:
    with live.unreachable(3):
        away = [row for row in rows(live, "partitions", "t") if row["broker"] == 3]
    assert len(away) == 2
    assert all(row["log_end"] is None and "unreachable" in str(row["role"]) for row in away)


def test_the_table_of_offsets_resolves_positions_and_times(live: LiveCluster) -> None:
    ports = ports_of(live.cluster)
    found = [
        (row.get("partition"), row.get("offset"))
        for row in offset_rows(ports.metadata, ports.storage, ports.memory, "t", "latest")
    ]
    assert found == [(0, 4), (1, 0)]
    last, none = OFFSETS.tuples(offset_rows(ports.metadata, ports.storage, ports.memory, "t", "last-tiered"))
    assert last[:3] == ("t", 0, 1)
    assert none == ("t", 1, None, None, None, "nothing is tiered yet")
    (first, _) = OFFSETS.tuples(offset_rows(ports.metadata, ports.storage, ports.memory, "t", "1970-01-01"))
    assert first[:4] == ("t", 0, 0, "1970-01-01T00:00:00.001000+00:00")
