"""What an installation needs: the wheel with the dependencies that it declares, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_SPARK = """
import sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is no declared dependency", name=name)
        return None

refused = set(sys.argv[2].split())
sys.meta_path.insert(0, Refusing())

import pyarrow as pa
from engine import Cluster
from partitions.errors import InvalidCallError

cluster = Cluster.format(sys.argv[1])
cluster.create_topic("t", partitions=2, replication_factor=2, configs={
    "remote.storage.enable": "true", "segment.bytes": "1", "segment.merge.min.files": "2", "retention.ms": "-1"
})
rows = pa.RecordBatch.from_pydict({
    "timestamp": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
    "key": pa.array([b"k", None]),
    "value": pa.array([b"a", b"b"]),
    "headers": pa.nulls(2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
})
for _ in range(2):
    cluster.append_batches("t", {0: [rows], 1: [rows]}).raise_for_failures()
print(cluster.fetch("t", 0, 0).records.column("value").to_pylist())
for job in (cluster.replicate, cluster.merge, cluster.tier, cluster.retain, cluster.verify, cluster.describe):
    job().raise_for_failures()
print(sum(table.num_rows for table in cluster.tail("t", last=4, follow=False)))
try:
    cluster.create_topic("typed", value="a INT")
except InvalidCallError as error:
    print(error)
from jobs import describe, main
for name in main.JOBS:
    __import__(f"jobs.{name}")
print(describe.main(["--cluster", sys.argv[1]]))
print(main.main(["read", "--cluster", sys.argv[1], "--topic", "t"]))
"""


def undeclared() -> set[str]:
    """The names under which whatever is installed is imported that is no declared dependency, nor one of these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, found = [project["name"], *project["dependencies"]], set[str]()
    while wanted:
        requirement = wanted.pop()
        name = _plain(re.split(r"[^A-Za-z0-9._-]", requirement)[0])
        if name not in found and "extra ==" not in requirement:
            found.add(name)
            with suppress(PackageNotFoundError):  # it is for other systems
                wanted += requires(name) or []
    distributions = packages_distributions()
    return {module for module, owners in distributions.items() if not found & {_plain(name) for name in owners}}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def test_without_spark_all_runs_that_does_not_compute_with_it(tmp_path: Path) -> None:
    """Whatever is not declared cannot be imported: pyspark, py4j, pandas, and what a development has besides."""
    for root in ("b1", "b2", "remote"):
        (tmp_path / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "b{n}"\n' for n in (1, 2))
    file = tmp_path / "cluster.toml"
    file.write_text(f'[cluster]\nid = "c"\nremote = "remote"\nvoters = [1]\n{brokers}')
    refused = undeclared()
    assert refused >= {"pyspark", "py4j", "pandas", "polars", "rich", "pytest"}
    command = [sys.executable, "-c", WITHOUT_SPARK, str(file), " ".join(refused)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:2] == ["[b'a', b'b', b'a', b'b']", "8"]
    assert said[2].startswith("a type of keys or values is Spark's, and pyspark is not installed")
    assert said[-2:] == ["0", "2"]
    assert "ENVIRONMENT_UNUSABLE: read computes with Spark, and pyspark is not installed" in done.stderr
