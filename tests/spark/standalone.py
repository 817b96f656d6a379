"""A real Spark cluster of processes on this machine: a master, two workers of one core, and their executors.

The workers go by two names of this machine: Spark gives a speculative copy only to another host.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyspark

from tests.spark.waiting import wait_for

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
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.jars": "",  # Delta's are for the driver, which has them on its class path
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.speculation.efficiency.enabled": "false",
        # The attempt that loses lives on, a zombie, instead of being killed two seconds later.
        "spark.python.task.killTimeout": "10min",
    }


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The address of the master. Everything that was started is ended on the way out."""
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        daemons.append(_daemon(log, f"{_CLASSES}.master.Master", "--host", HOSTS[0], "--port", "0"))
        master = wait_for("the master's address", partial(_address, log), daemons)
        for host in HOSTS:
            work = folder / f"worker-{host}"
            argv = ["--host", host, "--cores", "1", "--memory", "512m", "--work-dir", str(work), master]
            daemons.append(_daemon(folder / f"worker-{host}.log", f"{_CLASSES}.worker.Worker", *argv))
        for host in HOSTS:
            log = folder / f"worker-{host}.log"
            wait_for(f"worker {host}", partial(_says, log, "Successfully registered with master"), daemons)
        yield master
    finally:
        for daemon in daemons:  # executors end with their workers
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def spark_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Spark process of its own, whatever session the tests have."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    home = Path(pyspark.__file__).parent
    return environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **extra,
    }


def read(file: Path) -> str:
    """The text of a file, empty where there is none yet."""
    return file.read_text(errors="replace") if file.exists() else ""


def _daemon(log: Path, main_class: str, *argv: str) -> subprocess.Popen[bytes]:
    environ = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1"}
    environ["PYTHONPATH"] = ""  # executors inherit it; a driver gives them theirs
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), main_class, "--webui-port", "0", *argv]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=spark_environment(environ), cwd=log.parent)


def _says(log: Path, text: str) -> bool:
    return text in read(log)


def _address(log: Path) -> str | None:
    found = re.search(r"Starting Spark master at (spark://\S+)", read(log))
    return None if found is None else found[1]
