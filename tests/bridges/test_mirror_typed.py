"""Topics whose values are decoded during the mirror: undecodable values are kept, and compared, as bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.bridges.formats.json_text import JsonValues
from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.jobs.compare import main as compare_job
from stratalog.bridges.jobs.mirror import main as mirror_job
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.driver.report import Report
from stratalog.partitions.declared import ddl, declared
from stratalog.partitions.errors import InvalidCallError
from tests.bridges.memory_source import MemorySource
from tests.bridges.test_mirror_in_bulk import TwoTasks
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

GOOD, WRONG = '{"id": 1, "city": "Oslo"}', '{"id": "one"}'


def by(schema: str) -> TypedValues:
    return TypedValues(JsonValues(declared(schema)))


VALUES = by("id LONG NOT NULL, city STRING")
TYPED = MirrorOptions(replication_factor=3, values=VALUES)


def some() -> MemorySource:
    source = MemorySource(2)
    source.logs[0].append(GOOD, WRONG, None, gaps=2)
    source.logs[0].append(GOOD, "no JSON", gaps=1)
    source.logs[1].append(GOOD)
    return source


def run(live: LiveCluster, source: MemorySource, options: MirrorOptions = TYPED, *, tasks: bool = False) -> Report:
    ports = ports_of(live.cluster)
    ports = ports.with_tasks(TwoTasks()) if tasks else ports
    return mirror(ports.metadata, ports.storage, ports.execution, ports.memory, source, ["t"], options)


def values(live: LiveCluster) -> list[Any]:
    return live.cluster.fetch("t", 0, 0).records.column("value").to_pylist()


@pytest.mark.parametrize("tasks", [False, True])
def test_values_are_typed_and_what_is_not_of_the_type_is_kept_and_counted(tasks: bool, tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    report = run(live, source, replace(TYPED, bulk_offsets=1), tasks=tasks).raise_for_failures()
    assert ("tasks" in report.totals) == tasks
    assert [(row["records"], row["undecoded"], row["gaps"]) for row in report.rows] == [(5, 2, 3), (1, 0, 0)]
    assert report.totals["undecoded"] == 2
    typed = {"_undecoded": None, "id": 1, "city": "Oslo"}
    kept = {"_undecoded": WRONG.encode(), "id": None, "city": None}
    assert values(live) == [typed, kept, None, typed, {**kept, "_undecoded": b"no JSON"}]
    assert ddl(live.cluster.image.topic("t").value_schema) == "_undecoded BINARY, id BIGINT, city STRING"
    compared = with_ports(compare, ports_of(live.cluster))(source, ["t"], VALUES).raise_for_failures()
    assert [(row["there"], row["here"]) for row in compared.rows] == [(5, 5), (1, 1)]
    live.cluster.verify(deep=True).raise_for_failures()


def test_typed_values_that_differ_are_named(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    run(live, source).raise_for_failures()
    log = source.logs[0]
    log.records[0] = log.records[0]._replace(value=b'{"city": "Oslo", "id": 1}')
    with_ports(compare, ports_of(live.cluster))(source, ["t"], VALUES).raise_for_failures()
    log.records[0] = log.records[0]._replace(value=b'{"city": "Rome", "id": 1}')
    log.records[1] = log.records[1]._replace(value=WRONG.encode() + b" ")
    log.records[2] = log.records[2]._replace(value=b"null")
    (failure,) = with_ports(compare, ports_of(live.cluster))(source, ["t"], VALUES).failures
    assert failure.message == (
        "offsets that differ: 0 is another record, 1 is another record, 2 is another record"
    )


def test_a_schema_that_has_got_a_field_lets_the_topic_grow(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    source.logs[0].append('{"id": 2, "zone": 7}')
    run(live, source).raise_for_failures()
    wider = by("id LONG NOT NULL, city STRING, zone INT")
    source.logs[0].append('{"id": 3, "zone": 8}')
    report = run(live, source, replace(TYPED, values=wider)).raise_for_failures()
    assert report.totals["undecoded"] == 0
    assert [value and value["zone"] for value in values(live)[-2:]] == [None, 8]
    with_ports(compare, ports_of(live.cluster))(source, ["t"], wider).raise_for_failures()
    for narrower in (VALUES, by("id STRING")):
        (failure,) = run(live, source, replace(TYPED, values=narrower)).failures
        assert (failure.item, failure.code) == ("t", "INVALID_REQUEST")


def test_a_topic_stays_typed_or_of_bytes(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    run(live, source).raise_for_failures()
    plain = MirrorOptions()
    (failure,) = run(live, source, plain).failures
    assert "--format, --schema" in failure.message
    with pytest.raises(InvalidCallError, match="--format, --schema"):
        with_ports(compare, ports_of(live.cluster))(source, ["t"])
    live.cluster.topics.delete("t")
    run(live, source, replace(plain, replication_factor=3)).raise_for_failures()
    (failure,) = run(live, source).failures
    assert "values of bytes" in failure.message
    with pytest.raises(InvalidCallError, match="values of bytes"):
        with_ports(compare, ports_of(live.cluster))(source, ["t"], VALUES)


def test_the_jobs_find_a_schema_that_is_invalid_before_they_ask_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("confluent_kafka")
    live = LiveCluster(tmp_path, on_disk=True)
    (tmp_path / "trip.ddl").write_text("id INTERVAL")
    for job, option in ((mirror_job, "--from"), (compare_job, "--with")):
        asked = ["--cluster", str(live.file), option, "localhost:1", "t"]
        assert job([*asked, "--format", "json"]) == 2
        assert "--format needs --schema" in capsys.readouterr().err
        assert job([*asked, "--format", "json", "--schema", str(tmp_path / "trip.ddl")]) == 2
        assert "INTERVAL" in capsys.readouterr().err
