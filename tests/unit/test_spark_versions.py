"""Differences of Spark's versions: rows that reach a task by its number, and refusals."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stratalog.engine.records.spark_hash import hashes_of
from stratalog.engine.spark import versions
from stratalog.partitions.errors import InvalidCallError


@pytest.mark.parametrize(
    ("number", "murmur3"),
    [(0, 933211791), (1, -559580957), (2, 1765031574), (42, 29417773), (1000, -14577491)],
)
def test_the_hash_is_that_of_spark(number: int, murmur3: int) -> None:
    """The results of ``SELECT hash(CAST(n AS INT))``."""
    assert hashes_of(pa.array([number], pa.int32()))[0] == murmur3


@pytest.mark.parametrize("partitions", [1, 2, 8, 199])
def test_each_partition_has_a_key_of_its_own(partitions: int) -> None:
    keys = versions.keys_by_partition(partitions)
    assert list(hashes_of(pa.array(keys, pa.int32())) % partitions) == list(range(partitions))


def test_a_feature_of_a_later_version_is_refused_with_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.pyspark, "__version__", "4.1.4")
    versions.check_version(versions.SINK, "the sink", "use another")
    with pytest.raises(
        InvalidCallError, match=r"a limit needs Spark 4\.2 or later, but this is 4\.1\.4: leave it out"
    ):
        versions.check_version(versions.LIMITS, "a limit", "leave it out")
