"""delta-spark reads the remote table of each kind of topic; the unit tests have the other readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.remote_kinds import KINDS, plain, remote_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.delta]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_delta_spark_finds_every_record_with_its_value(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    remote = remote_of(KINDS[kind], tmp_path)
    frame = spark.read.format("delta").load(str(remote.table)).where("control IS NULL").select("offset", "value")
    found = frame.toArrow().sort_by("offset").to_pylist()
    assert [(row["offset"], plain(row["value"])) for row in found] == [
        (n, plain(value)) for n, value in remote.rows
    ]
