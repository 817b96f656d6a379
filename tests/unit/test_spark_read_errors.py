"""Spark's errors about files, without Spark: the file decides what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from stratalog.engine.spark.read_errors import read_errors
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StorageError, StratalogError
from tests.unit.cluster_harness import LiveCluster


@pytest.mark.parametrize("kind", ["checkpoint", "parquet"])
def test_a_file_is_damaged_only_if_its_bytes_are(tmp_path: Path, kind: str) -> None:
    """Spark's reader may fail because of the network, or of its own memory."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic(copies=1, cleanup_policy="snapshot")
    live.cluster.produce("t", [{"key": f"k{n}", "value": "v"} for n in range(3)], key="key", value="value")
    live.cluster.snapshot("t", by_hand=True)
    [file] = [path for path in tmp_path.rglob(f"*.{kind}") if "/t-" in str(path)]

    def said() -> StratalogError:
        error = PySparkException(
            f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file.as_uri()}. "
        )
        with pytest.raises(StratalogError) as caught, read_errors(live.cluster.stores.values()):
            raise error
        return caught.value

    assert isinstance(intact := said(), StorageError)
    assert "whose bytes are intact: read it again" in str(intact)
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    assert isinstance(damaged := said(), CorruptSegmentError)
    assert ("the snapshot of offsets [0, 3)" in str(damaged)) == (kind == "checkpoint")
    file.unlink()
    assert isinstance(said(), SourceChangedError)
