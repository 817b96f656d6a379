"""A real Spark cluster of processes on this machine: a master, two workers of one core, and their executors.

The workers use two names of this machine, because Spark starts a speculative copy only on another host. Executors
inherit the environment of their worker.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyspark

from stratalog.jobs.jars import jar_folder, session_jars
from stratalog.jobs.spark_home import compiled_home
from tests.class_archive import archive_option
from tests.spark.waiting import wait_for
from tests.spark_session import QUICK

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("127.0.0.1", "localhost")
_CLASSES = "org.apache.spark.deploy"


def session_settings() -> dict[str, str]:
    """Settings of a driver: an executor of one core on each worker, and every kind of second attempt."""
    return {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.jars": "",  # Delta's are for the driver, which has them on its class path
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.speculation.efficiency.enabled": "false",
        # The losing attempt survives as a zombie, instead of being killed two seconds later.
        "spark.python.task.killTimeout": "10min",
    }


class Standalone:
    """A running cluster; ``standalone`` starts one."""

    def __init__(self, folder: Path, environments: Mapping[str, Mapping[str, str]]) -> None:
        self._folder = folder
        self._environments = environments
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the master and its workers; returns when they are connected."""
        log = self._folder / "master.log"
        argv = ("--host", HOSTS[0], "--port", "0")
        self._daemons["master"] = _daemon(log, f"{_CLASSES}.master.Master", *argv)
        self.master: str = wait_for("the master's address", partial(_address, log), [*self._daemons.values()])
        self.start_workers()

    def start_workers(self) -> None:
        missing = [host for host in HOSTS if host not in self._daemons]
        logs = {host: self._folder / f"worker-{host}.log" for host in missing}
        for host, log in logs.items():
            argv = ["--host", host, "--cores", "1", "--memory", "512m"]
            argv += ["--work-dir", str(self._folder / f"worker-{host}"), self.master]
            environ = self._environments.get(host, {})
            self._daemons[host] = _daemon(log, f"{_CLASSES}.worker.Worker", *argv, environ=environ)
        for host, log in logs.items():
            registered = partial(_says, log, "Successfully registered with master")
            wait_for(f"worker {host}", registered, [*self._daemons.values()])

    def kill_worker(self, host: str) -> int:
        """kill -9 of a worker and of its executors; returns the number of executors."""
        worker = self._daemons.pop(host)
        find = ["pgrep", "-P", str(worker.pid), "-f", "CoarseGrainedExecutorBackend"]
        executors = [int(pid) for pid in subprocess.run(find, capture_output=True, check=False).stdout.split()]
        worker.kill()  # first, or it would start others
        for pid in executors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()
        return len(executors)

    def end(self) -> None:
        """End all started processes; executors end with their workers."""
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def standalone(folder: Path, environments: Mapping[str, Mapping[str, str]] = {}) -> Iterator[Standalone]:
    """A cluster; ``environments`` are additional variables of workers, keyed by host."""
    cluster = Standalone(folder, environments)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def spark_submit() -> list[str]:
    """The command in the project's root, with its settings. With ``$STRATALOG_JARS``, the jars there are used
    instead of the checkout's, which the settings name."""
    command = [str(Path(sys.prefix, "bin", "spark-submit")), "--properties-file", "conf/spark-defaults.conf"]
    if "STRATALOG_JARS" in os.environ:
        command += ["--driver-class-path", os.pathsep.join(map(str, session_jars(jar_folder())))]
    return command


def spark_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a separate Spark process, independent of the tests' session, with options for a quick
    start; names with an empty text in ``extra`` are removed.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    environ |= {
        "SPARK_HOME": str(compiled_home(Path(pyspark.__file__).parent, jar_folder())),
        "SPARK_SUBMIT_OPTS": f"{QUICK} {archive_option()}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **extra,
    }
    return {name: value for name, value in environ.items() if value}


def read(file: Path) -> str:
    """The text of a file; empty if the file does not exist."""
    return file.read_text(errors="replace") if file.exists() else ""


def _daemon(log: Path, main_class: str, *argv: str, environ: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
    # A driver gives executors their PYTHONPATH.
    quick = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": QUICK, "PYTHONPATH": ""}
    environ = {**quick, **environ}
    environment = spark_environment(environ)
    command = [f"{environment['SPARK_HOME']}/bin/spark-class", main_class, "--webui-port", "0", *argv]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=log.parent)


def _says(log: Path, text: str) -> bool:
    return text in read(log)


def _address(log: Path) -> str | None:
    found = re.search(r"Starting Spark master at (spark://\S+)", read(log))
    return None if found is None else found[1]
