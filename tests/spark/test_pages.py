"""The code of the README, of the tutorial and of the page on Delta tables has the results that they show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog import FoundOffset
from stratalog.engine.spark.versions import SINK, spark_version
from tests.pages import blocks, make_cluster_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.connect
def test_the_code_in_the_readme_runs_and_prints_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ``spark_session`` is the existing session. Bytes, requests and seconds may differ."""
    make_cluster_file("README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    [example] = blocks("README.md", "python")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["spark"] is spark
    assert without_costs(capsys.readouterr().out) == without_costs(blocks("README.md", "text")[0])


def without_costs(printed: str) -> list[str]:
    """The lines without empty ones, and without figures that differ from run to run."""
    costs = r"bytes [\d,]+, [\d,]+ storage requests, [\d.]+ s$"
    return [re.sub(costs, "costs", line) for line in printed.splitlines() if line.strip()]


@pytest.mark.nightly
@pytest.mark.delta
def test_the_code_in_the_tutorial_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session, appends, planned reads, upkeep, streams, groups, a transaction."""
    make_cluster_file("docs/tutorial.md", tmp_path)
    code = iter(blocks("docs/tutorial.md", "python"))
    session, append, read, plan, by_format, by_sql, lane = (next(code) for _ in range(7))
    upkeep, streaming, scans, copy, groups, transaction = code
    monkeypatch.chdir(tmp_path)

    names: dict[str, Any] = {}
    exec(session, names)
    assert names["spark"] is spark

    exec(append, names)
    assert {row["outcome"] for row in names["report"].rows} == {"acknowledged"}
    assert {row["outcome"] for row in names["again"].rows} == {"duplicate"}

    exec(read, names)
    assert [tuple(row) for row in names["oslo"].collect()] == [("t1", 3.5)]
    ends = [found.offset for found in names["latest"].values() if isinstance(found, FoundOffset)]
    assert sum(ends) == 2

    exec(plan, names)
    assert "rack b" in names["plan"].explain()
    assert names["same"].count() == 2
    assert [row.n for row in names["far"].collect()] == [1]

    exec(by_format, names)
    names["save"].mode("append").save("rides")
    assert names["trips_now"].count() == 2
    assert [row.distance for row in names["ridden"].collect()] == [12.0]  # its first query is this one
    assert names["cluster"].read("rides").count() == 3
    spark.catalog.dropTempView("rides")

    exec(by_sql, names)
    assert {row.key for row in names["some"].collect()} <= {"t1", "t2"}
    assert sum(row.led for row in names["led"].collect()) == 4
    assert sum(row.offset for row in names["ends"].collect()) == 2
    assert [row.tier for row in names["sizes"].collect()] == ["local"]

    exec(lane, names)
    assert names["counted"].totals["bad_records"] == 1
    assert names["cluster"].read("rides").count() == 4
    assert [row.value for row in names["bad"].collect()] == ['{"id": "t5", "city": "Oslo", "distance": "two"}']

    exec(upkeep, names)
    assert names["cluster"].verify(deep=True).ok

    names["trips"].write.parquet(str(tmp_path / "incoming"))
    exec(streaming, names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    assert names["cluster"].read("trips").count() == 4
    names["live"].writeStream.format("memory").queryName("seen").trigger(
        availableNow=True
    ).start().awaitTermination()
    assert spark.table("seen").count() == 4

    exec(scans, names)
    for query in spark.streams.active:
        query.awaitTermination()
    assert spark.read.format("delta").load(str(tmp_path / "trips-table")).count() == 4

    if spark_version() >= SINK:
        exec(copy, names)
        for query in spark.streams.active:
            query.awaitTermination()
        columns = ("key", "value.city", "value.distance", "timestamp")
        there = names["cluster"].read("trips").where("value.city = 'Oslo'").select(*columns)
        assert sorted(names["cluster"].read("oslo-trips").select(*columns).collect()) == sorted(there.collect())
        assert there.count() == 2

    exec(groups, names)
    assert sum(row.lag for row in names["behind"].collect()) == 4
    assert [(row.key, row.value.people, row.end_offset) for row in names["state"].collect()] == [
        ("Oslo", 710_000, 2)
    ]

    exec(transaction, names)
    assert names["settled"].count() == 6
    assert names["cluster"].groups.committed("dashboard")["trips", 0].offset == 1


@pytest.mark.delta
def test_the_names_of_the_delta_page_are_made_and_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every statement on the page, with the README's topic."""
    make_cluster_file("README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(blocks("README.md", "python")[0], names)
    cluster = names["cluster"]
    cluster.topics.alter_configs(
        "trips", {"segment.bytes": "1"}
    )  # the existing files are old enough for the table
    cluster.tier().raise_for_failures()
    cluster.append("trips", names["trips"], key="id").raise_for_failures()
    table, view = blocks("docs/delta.md", "python")
    [statements] = blocks("docs/delta.md", "sql")
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog")
    spark.sql("CREATE SCHEMA logs")
    try:
        exec(table, names)
        assert spark.table("logs.trips_cold").count() == 2
        exec(view, names)
        count, properties = (spark.sql(each).collect() for each in statements.strip().rstrip(";").split(";"))
        assert count[0][0] == 2
        assert {row.key: row.value for row in properties}["stratalog.topic"] == "trips"
    finally:
        spark.sql("DROP SCHEMA logs CASCADE")
        spark.conf.set("spark.sql.catalog.spark_catalog", catalog)
