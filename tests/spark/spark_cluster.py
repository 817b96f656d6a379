"""A cluster on folders, driven with Spark."""

from __future__ import annotations

from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog import Cluster
from tests.unit.harness import batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
}


def write_cluster_file(folder: Path, brokers: int = 2) -> Path:
    """Folders for the brokers and the remote tier, and the file that names them."""
    lines = ['[cluster]\nid = "spark"\nremote = "remote"\nvoters = [1]\n']
    for broker in range(1, brokers + 1):
        lines.append(f'[[brokers]]\nid = {broker}\nrack = "{broker}"\nlog_dir = "b{broker}"\n')
        (folder / f"b{broker}").mkdir()
    (folder / "remote").mkdir()
    file = folder / "cluster.toml"
    file.write_text("\n".join(lines))
    return file


def format_cluster(spark: SparkSession, folder: Path, brokers: int = 2) -> Cluster:
    """A new cluster in a folder."""
    return Cluster.format(write_cluster_file(folder, brokers), spark)


def begun(file: Path) -> None:
    """Formats the cluster without Spark; topic ``t`` has the values a, b in the remote tier, and c on brokers."""
    cluster = Cluster.format(file)
    cluster.topics.create("t", partitions=1, replication_factor=1, configs=TIERED)
    for value in ("a", "b"):
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    cluster.tier().raise_for_failures()
    for _ in range(2):
        cluster.retain().raise_for_failures()
    cluster.append_batches("t", {0: [batch(["c"])]}).raise_for_failures()


def rows(frame: DataFrame, *columns: str) -> Counter[str]:
    """The rows with their counts, keyed by their text, because a row may contain unhashable values."""
    return Counter(map(repr, (frame.select(*columns) if columns else frame).collect()))


def ordered(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The columns, by partition and offset."""
    return [tuple(row) for row in frame.orderBy("partition", "offset").select(*columns).collect()]


def explained(frame: DataFrame) -> str:
    """The physical plan."""
    with redirect_stdout(StringIO()) as printed:
        frame.explain()
    return printed.getvalue()


def files(folder: Path) -> dict[str, int]:
    """Every file below a folder, and its size."""
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
