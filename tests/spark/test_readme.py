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
    """A cluster file, a notebook, a stream."""
    [cluster_file] = blocks("toml")
    notebook, streaming, groups = blocks("python")
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

    names["trips"].write.parquet(str(tmp_path / "incoming"))
    names["stream"] = spark.readStream.schema(names["trips"].schema).parquet(str(tmp_path / "incoming"))
    names["checkpoint"] = str(tmp_path / "checkpoint")
    exec(streaming, names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    assert names["cluster"].read("trips").count() == 4

    exec(groups, names)
    assert sum(row.lag for row in names["behind"].collect()) == 4
    assert [(row.key, row.value.people, row.end_offset) for row in names["state"].collect()] == [
        ("Oslo", 710_000, 2)
    ]
