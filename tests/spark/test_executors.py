"""Executors without a checkout or an installation: ``stratalog package`` and ``--py-files``."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Cluster
from stratalog.jobs import package
from tests.bare_python import bare_python
from tests.spark.spark_cluster import write_cluster_file
from tests.spark.standalone import ROOT, session_settings, spark_environment, spark_submit, standalone

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.classic("its drivers have sessions of their own"),
]

ARRIVED = [(b"a", 0), (b"b", 1), (b"c", 2)]


def test_jobs_and_the_format_run_on_executors_that_have_the_zip_alone(tmp_path: Path) -> None:
    """An append in tasks, then a stream through the data source from that topic to another one."""
    zipped = tmp_path / "stratalog.zip"
    assert package.main(["--to", str(zipped)]) == 0
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    python = bare_python(tmp_path / "python", declared)
    missing = subprocess.run([python, "-I", "-c", "import stratalog"], capture_output=True, check=False)
    assert missing.returncode == 1

    file = write_cluster_file(tmp_path)
    cluster = Cluster.format(file)
    for topic in ("first", "second"):
        cluster.topics.create(topic, partitions=1, replication_factor=2)
    pq.write_table(pa.table({"v": [value for value, _ in ARRIVED]}), tmp_path / "input.parquet")
    stream = (
        "--value",
        "value",
        "--option",
        "startingOffsets=earliest",
        "--stream",
        "--checkpoint",
        str(tmp_path / "checkpoint"),
        "--producer",
        "copy",
    )
    with standalone(tmp_path) as spark:
        for topic, source in (
            ("first", ("--input", str(tmp_path / "input.parquet"), "--value", "v")),
            ("second", ("--input", "first", "--format", "stratalog", *stream)),
        ):
            settings = {**session_settings(), "spark.submit.pyFiles": str(zipped)}
            del settings["spark.executorEnv.PYTHONPATH"]
            options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
            argv = [topic, *source, "--cluster", file]
            pythons = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
            environ = spark_environment({**pythons, "PYTHONPATH": ""})
            environ["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), environ["PATH"]])
            done = subprocess.run(
                [*spark_submit(), "--master", spark.master, *options, "jobs/append.py", *argv],
                cwd=ROOT,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            found = cluster.fetch(topic, 0, 0).records
            assert list(zip(found["value"].to_pylist(), found["offset"].to_pylist(), strict=True)) == ARRIVED
