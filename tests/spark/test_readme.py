"""The README's code does what the README says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine import FoundOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_the_code_in_the_readme_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster file, a notebook, planned reads, streams, groups, a transaction."""
    [cluster_file] = blocks("toml")
    notebook, reads, streaming, groups, transaction = blocks("python")
    (tmp_path / "cluster.toml").write_text(cluster_file)
    for folder in ("broker-1", "broker-2", "remote"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)

    names: dict[str, Any] = {"spark": spark}
    exec(notebook, names)
    assert {row["outcome"] for row in names["report"].rows} == {"acknowledged"}
    assert {row["outcome"] for row in names["again"].rows} == {"duplicate"}
    assert [tuple(row) for row in names["oslo"].collect()] == [("t1", 3.5)]
    ends = [found.offset for found in names["latest"].values() if isinstance(found, FoundOffset)]
    assert sum(ends) == 2

    exec(reads, names)
    assert "rack b" in names["plan"].explain()
    assert names["same"].count() == 2
    assert [row.n for row in names["far"].collect()] == [1]

    names["trips"].write.parquet(str(tmp_path / "incoming"))
    names["stream"] = spark.readStream.schema(names["trips"].schema).parquet(str(tmp_path / "incoming"))
    names["checkpoint"] = str(tmp_path / "checkpoint")
    names["cluster_file"] = str(tmp_path / "cluster.toml")
    exec(streaming, names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    assert names["cluster"].read("trips").count() == 4
    names["live"].writeStream.format("memory").queryName("seen").trigger(
        availableNow=True
    ).start().awaitTermination()
    assert spark.table("seen").count() == 4

    exec(groups, names)
    assert sum(row.lag for row in names["behind"].collect()) == 4
    assert [(row.key, row.value.people, row.end_offset) for row in names["state"].collect()] == [
        ("Oslo", 710_000, 2)
    ]

    exec(transaction, names)
    assert names["settled"].count() == 6
    assert names["cluster"].committed("dashboard")["trips", 0].offset == 1
