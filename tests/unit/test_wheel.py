"""An installation: the wheel with its declared dependencies and nothing else, in a project with its own ``jobs``,
``engine`` and ``conf``."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bare_python import installed, run, wheel_of_checkout

pytestmark = pytest.mark.slow

PIPELINE = """
import sys
import conf, engine, jobs
assert [one.OWNER for one in (conf, engine, jobs)] == ["the project"] * 3

import pyarrow as pa
from stratalog import Cluster

cluster = Cluster.open(sys.argv[1])
rows = pa.RecordBatch.from_pydict({
    "timestamp": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
    "key": pa.array([b"k", None]),
    "value": pa.array([b"a", b"b"]),
    "headers": pa.nulls(2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
})
for _ in range(2):
    cluster.append_batches("t", {0: [rows], 1: [rows]}).raise_for_failures()
print(cluster.fetch("t", 0, 0).records.column("value").to_pylist())
print(sum(table.num_rows for table in cluster.tail("t", last=4, follow=False)))
cluster.topics.create("typed", value="a INT")
cluster.produce("typed", [{"a": 7}]).raise_for_failures()
print(cluster.fetch("typed", 0, 0).records.column("value").to_pylist())
from stratalog.jobs.main import JOBS, job_of
for name in JOBS:
    job_of(name)
print(sorted(set(sys.modules) & {"pyspark", "py4j", "pandas", "polars", "rich", "pytest"}))
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with its own packages, and a Python in which the wheel is installed."""

    folder: Path
    python: Path

    def stratalog(self, *argv: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """The output of a job."""
        return run(self.python.with_name("stratalog"), *argv, folder=self.folder, status=status)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of_checkout(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Project:
    """The wheel in an environment with its requirements, and a project beside it."""
    folder = tmp_path_factory.mktemp("project")
    python = installed(wheel, folder / "venv")
    for package in ("conf", "engine", "jobs"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text('OWNER = "the project"\n')
    for root in ("b1", "b2", "remote"):
        (folder / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "b{n}"\n' for n in (1, 2))
    (folder / "cluster.toml").write_text(f'[cluster]\nid = "c"\nremote = "remote"\nvoters = [1]\n{brokers}')
    (folder / "pipeline.py").write_text(PIPELINE)
    return Project(folder, python)


def test_the_wheel_is_the_package_that_executors_get(wheel: Path, project: Project) -> None:
    project.stratalog("package", "--to", "stratalog.zip")
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(project.folder / "stratalog.zip") as zipped:
        assert set(zipped.namelist()) == {name for name in packed.namelist() if ".dist-info/" not in name}


def test_without_spark_every_job_that_does_not_need_it_runs(project: Project) -> None:
    """A cluster's life, from the command line and from Python."""
    given = ("--cluster", "cluster.toml")
    project.stratalog("format", *given)
    configs = ["remote.storage.enable=true", "segment.bytes=1", "segment.merge.min.files=2", "retention.ms=-1"]
    options = [part for config in configs for part in ("--config", config)]
    project.stratalog("topics", "create", "t", "--partitions", "2", "--replication-factor", "2", *options, *given)

    found = run(project.python, "pipeline.py", "cluster.toml", folder=project.folder).stdout.splitlines()
    assert found[:2] == ["[b'a', b'b', b'a', b'b']", "8"]
    assert found[2] == "[{'a': 7}]"
    assert found[3:] == ["[]"]

    tailed = project.stratalog("tail", "t", "-n", "1", *given)
    assert len(tailed.stdout.splitlines()) == 2
    for job in ("replicate", "merge", "tier", "retain", "verify", "describe"):
        project.stratalog(job, *given)
    read = project.stratalog("read", "t", *given, status=2)
    assert "ENVIRONMENT_UNUSABLE: read needs Spark, but pyspark is not installed" in read.stderr
