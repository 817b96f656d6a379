"""A site that shares nothing: a standalone cluster whose driver and workers each have their own Python, scratch
folder and working directory, with storage in buckets only.

The Pythons are separate environments, whose packages are links to those of this one, in the same versions
(``tests.bare_python``): an installation would need a network and produce the same files. None of them contains
this checkout. pip installs stratalog's wheel in each, or workers get the zip of ``stratalog package`` through
``--py-files``.

Workers have credentials of the storage in their environment, and Hadoop's S3A on their class path, like the
machines and images of a platform.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StringType, StructField, StructType

from bench.s3_server import ACCESS_KEY, SECRET_KEY, S3Endpoint
from stratalog import Cluster
from stratalog.jobs import package
from stratalog.jobs.jars import class_path, jar_folder
from stratalog.jobs.session import log_option
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.protocol import Store
from tests.bare_python import bare_python, installed, requirements_of
from tests.spark.standalone import HOSTS, ROOT, Standalone, session_settings, spark_environment, standalone

WORKER = "STRATALOG_TEST_WORKER"
"""The name of an executor's worker, in its environment."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
BROKERS = 3

KEY, VALUE = StringType(), StructType([StructField("n", LongType())])
"""Types of topics that are created here, without a session that parses DDL."""

CLUSTER = """
[cluster]
id = "{name}"
remote = "{remote}"
voters = [1, 2, 3]

[s3]
endpoint_url = "{url}"
region = "{region}"
"""


@dataclass(frozen=True)
class Site:
    """The cluster, and the environment of its drivers."""

    folder: Path
    """The folder of the driver, which no other process reads."""
    spark: Standalone
    endpoint: S3Endpoint
    python: Path
    """The driver's."""
    scripts: Path
    """The folder with ``append.py`` and the other jobs."""
    zip: Path | None
    """The zip that ``--py-files`` sends to executors."""
    submitted: list[Submitted] = field(default_factory=list)
    """All started processes."""

    @cached_property
    def bucket(self) -> Store:
        """The prefix of this site in a bucket: the cluster file, inputs, outputs, checkpoints, brokers."""
        options = StoreOptions(self.endpoint.url, self.endpoint.region)
        return open_store(f"s3://{self.endpoint.buckets[0]}/{self.folder.parent.name}", options)

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened here."""
        return Cluster.open(self._file(self.folder / "seen-here.toml"))

    def write_cluster_file(self, name: str = "cluster", brokers: str = "b") -> str:
        """Write a cluster file into the bucket and return its address. ``brokers`` is the common prefix of their
        names."""
        here = self._file(self.folder / f"{name}.toml", name, brokers)
        assert self.bucket.create(f"{name}.toml", here.read_bytes())
        return self.bucket.uri_of(f"{name}.toml")

    def _file(self, path: Path, name: str = "cluster", brokers: str = "b") -> Path:
        remote = f"s3://{self.endpoint.buckets[1]}/{self.folder.parent.name}"
        url, region = self.endpoint.url, self.endpoint.region
        text = CLUSTER.format(name=name, remote=remote, url=url, region=region)
        for broker in range(1, BROKERS + 1):
            log_dir = self.bucket.uri_of(f"{brokers}{broker}")
            text += f'\n[[brokers]]\nid = {broker}\nrack = "r{broker}"\nlog_dir = "{log_dir}"\n'
        path.write_text(text)
        return path

    def start(self, script: str | Path, *argv: str, settings: Mapping[str, str] = {}, **environ: str) -> Submitted:
        """Start a spark-submit of a job (by name), or of another script."""
        path = script if isinstance(script, Path) else self.scripts / f"{script}.py"
        chosen = {
            **session_settings(),
            "spark.speculation": "false",
            "spark.driver.extraClassPath": class_path(jar_folder()),
            "spark.executor.extraClassPath": class_path(jar_folder()),
            "spark.driver.extraJavaOptions": f"{log_option()} -XX:TieredStopAtLevel=1",
            "spark.local.dir": str(self.folder / "scratch"),
            "spark.pyspark.python": "python",  # the first one on the path of each worker
            "spark.pyspark.driver.python": str(self.python),
            **settings,
        }
        del chosen["spark.executorEnv.PYTHONPATH"]
        home = spark_environment({})["SPARK_HOME"]
        command = [f"{home}/bin/spark-submit", "--master", self.spark.master]
        command += [part for pair in chosen.items() for part in ("--conf", "=".join(pair))]
        if self.zip is not None:
            command += ["--py-files", ",".join([str(self.zip), *filter(None, [environ.pop("PY_FILES", "")])])]
        elif "PY_FILES" in environ:
            command += ["--py-files", environ.pop("PY_FILES")]
        self.submitted.append(Submitted([*command, str(path), *argv], self._environment(environ), self.folder))
        return self.submitted[-1]

    def run(self, job: str, *argv: str, status: int = 0, settings: Mapping[str, str] = {}) -> dict[str, Any]:
        """The report of a job under spark-submit."""
        return self.start(job, *argv, "--json", settings=settings).report(status)

    def run_in_turn(self, *calls: Sequence[str], **environ: str) -> list[dict[str, Any]]:
        """The reports of jobs in one spark-submit. Raises: AssertionError if one has an exit status other than
        0."""
        script, listed = (self.folder / name for name in ("jobs_in_turn.py", "calls.json"))
        shutil.copy(ROOT / "tests/spark/jobs_in_turn.py", script)
        listed.write_text(json.dumps(calls))
        text = self.start(script, str(listed), **environ).end()
        done = [json.loads(line.removeprefix("DONE ")) for line in text.splitlines() if line.startswith("DONE ")]
        for call, (status, report) in zip(calls, done, strict=True):
            assert status == 0, (call, report)
        return [report for _, report in done]

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        return spark_environment(
            {
                "HOME": str(self.folder),
                "PATH": os.pathsep.join([str(self.python.parent), os.environ["PATH"]]),
                "PYTHONPATH": "",
                "PYSPARK_PYTHON": "",
                "AWS_ENDPOINT_URL_S3": self.endpoint.url,
                "STRATALOG_CLUSTER": self.bucket.uri_of("cluster.toml"),
                **extra,
            }
        )


class Submitted:
    """A running spark-submit, whose output is in files of the driver's folder."""

    def __init__(self, command: list[str], environ: Mapping[str, str], folder: Path) -> None:
        self._output = folder / f"{len([*folder.glob('*.out')])}.out"
        with self._output.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=folder, env=dict(environ), stdout=out, stderr=out)

    @property
    def output(self) -> str:
        """The output so far."""
        return self._output.read_text(errors="replace")

    def end(self) -> str:
        """Wait, and return all output. Raises: AssertionError for an exit status other than 0."""
        assert self.process.wait(timeout=300) == 0, self.output[-6000:]
        return self.output

    def report(self, status: int = 0) -> dict[str, Any]:
        """The last printed report. Raises: AssertionError for another exit status."""
        assert self.process.wait(timeout=300) == status, self.output[-6000:]
        found: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return found


@contextmanager
def site(folder: Path, endpoint: S3Endpoint, wheel: Path, way: str, *, hands_out: bool = True) -> Iterator[Site]:
    """A site whose workers have stratalog by ``way``, and credentials if the site ``hands_out`` them."""
    (driver := folder / "driver").mkdir()
    (driver / "scratch").mkdir()
    python = installed(wheel, driver / "python", ["spark"])
    zipped = driver / "stratalog.zip" if way == "py-files" else None
    if zipped is not None:
        assert package.main(["--to", str(zipped)]) == 0
    environments = {}
    for host in HOSTS:
        (own := folder / host).mkdir()
        if zipped is None:
            there = installed(wheel, own / "python")
        else:
            there = bare_python(own / "python", requirements_of(wheel))
        missing = subprocess.run([there, "-I", "-c", "import stratalog"], capture_output=True, check=False)
        assert missing.returncode == (0 if zipped is None else 1)
        (own / "scratch").mkdir()
        environments[host] = {
            "PATH": os.pathsep.join([str(there.parent), os.environ["PATH"]]),
            "PYSPARK_PYTHON": "",
            "HOME": str(own),
            "TMPDIR": str(own / "scratch"),
            "SPARK_LOCAL_DIRS": str(own / "scratch"),
            WORKER: host,
            **(CREDENTIALS if hands_out else dict.fromkeys(CREDENTIALS, "")),
        }
    scripts = next(python.parents[1].glob("lib/python*/site-packages/stratalog/jobs"))
    with standalone(folder, environments) as spark:
        started = Site(driver, spark, endpoint, python, scripts, zipped)
        try:
            yield started
        finally:
            for one in started.submitted:
                one.process.kill()
                one.process.wait()
