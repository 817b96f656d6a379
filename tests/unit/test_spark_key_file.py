"""The format's option ``clusterKeyFile``: the key if a process's environment cannot be set."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from stratalog import Cluster
from stratalog.engine.config.key_source import KEY_VARIABLE, key_file
from stratalog.engine.reading.stream_options import batch_options, stream_options
from stratalog.engine.spark.batch_sink import BatchReader, BatchSink, batch_sink_options
from stratalog.engine.spark.stream_source import StreamReader, source_schema
from stratalog.partitions.errors import ClusterKeyError, CorruptionError
from tests.unit.harness import batch

ROWS = StructType([StructField("partition", IntegerType()), StructField("value", BinaryType())])


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The options of a read of a signed cluster, whose key is in a file and not in the environment."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    key = tmp_path / "key"
    key.write_text(base64.b64encode(b"a secret of thirty-two bytes, or more").decode())
    (tmp_path / "b1").mkdir()
    file = tmp_path / "cluster.toml"
    file.write_text('[cluster]\nid = "c"\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = "b1"\n')
    cluster = Cluster.format(file, cluster_key=key_file(key), keeps_short=False)
    cluster.topics.create("t", partitions=1, replication_factor=1)
    cluster.append_batches("t", {0: [batch(["a", "b"])]}).raise_for_failures()
    return {"cluster": str(file), "topic": "t", "clusterKeyFile": str(key)}


def test_sources_and_sinks_open_a_cluster_with_the_key_of_a_file(signed: dict[str, str]) -> None:
    options = batch_options(signed)
    schema = source_schema(options)
    assert len(BatchReader(options, schema).partitions()) == 1
    assert StreamReader(stream_options(signed), schema).initialOffset()
    sink = BatchSink(batch_sink_options(signed), ROWS)
    assert sink._ports.storage.key is not None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("short", ClusterKeyError),
        (base64.b64encode(b"another secret of thirty-two bytes").decode(), CorruptionError),
    ],
)
def test_a_key_that_is_invalid_or_another_one_is_refused(
    signed: dict[str, str], tmp_path: Path, text: str, error: type[Exception]
) -> None:
    other = tmp_path / "other"
    other.write_text(text)
    with pytest.raises(error):
        source_schema(batch_options({**signed, "clusterKeyFile": str(other)}))


def test_a_file_that_is_missing_is_named(signed: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ClusterKeyError, match="none"):
        source_schema(batch_options({**signed, "clusterKeyFile": str(tmp_path / "none")}))
