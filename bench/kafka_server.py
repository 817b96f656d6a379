"""Runs a real Kafka broker on this machine, for comparisons: Kafka from Maven Central, on free ports of 127.0.0.1.

One process is both broker and controller (KRaft), as in Kafka's quick start; all other settings are Kafka's
defaults. It has its own JVM with a heap of 1 GiB, like that of Kafka's start script.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.s3_server import HOST, free_ports
from stratalog.jobs.jars import class_path, fetch_jars, jar_folder
from stratalog.jobs.java import find_java
from stratalog.partitions.errors import EnvironmentUnusableError
from stratalog.partitions.identity import random_id

PINS = "kafka.xml"
READY_WITHIN_S = 600.0
_READY = "Kafka Server started"
_LOG_SETTINGS = """<Configuration>
<Appenders><Console name="out"><PatternLayout pattern="%p %m%n"/></Console></Appenders>
<Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def connector_class_path() -> str:
    """The jars of Spark's Kafka connector, for the class path of a driver; fetched at first use.

    Raises: EnvironmentUnusableError.
    """
    folder = jar_folder()
    fetch_jars(folder, PINS)
    return class_path(folder, PINS, "kafka-connector")


class KafkaNode:
    """One process of Kafka, with its data and its settings in ``folder``; not started yet."""

    def __init__(
        self,
        folder: Path,
        cluster_id: str,
        properties: str,
        of_jars: Sequence[str] = ("kafka-broker",),
        heap: str = "1g",
        options: Sequence[str] = (),
    ) -> None:
        """``of_jars``: the sets of ``conf/kafka.xml`` in its class path; ``options`` are additional options of its
        JVM.

        Raises: EnvironmentUnusableError when its storage cannot be formatted.
        """
        self._folder, self._log = folder, folder / "server.log"
        self._properties = folder / "server.properties"
        self._properties.write_text(properties + f"log.dirs={folder / 'data'}\n")
        (folder / "log4j2.xml").write_text(_LOG_SETTINGS)
        jars = os.pathsep.join(class_path(jar_folder(), PINS, one) for one in of_jars)
        self._java: list[str | Path] = [find_java(os.environ).executable, f"-Xmx{heap}", *options, "-cp", jars]
        self._process: subprocess.Popen[bytes] | None = None
        if self._run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", self._properties).wait() != 0:
            raise EnvironmentUnusableError(f"Kafka could not format its storage: {_end_of(self._log)}")

    def start(self) -> None:
        """Start the process, and return when it serves. Raises: EnvironmentUnusableError."""
        self._log.unlink()
        self._process = self._run("kafka.Kafka", self._properties)
        _wait_for(self._process, self._log)

    def stop(self) -> None:
        """Shut the process down in a controlled way."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _run(self, main: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        command = [*self._java, f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}", main, *arguments]
        with self._log.open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self._folder)


@contextmanager
def running_kafka(
    folder: Path,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    of_jars: Sequence[str] = ("kafka-broker",),
) -> Iterator[str]:
    """Start a broker with its data in the existing ``folder``; yields its ``host:port``, and stops it afterwards.
    It creates a topic at the first write, with this number of ``partitions``; ``settings`` are further configs.

    Raises: EnvironmentUnusableError when its jars cannot be fetched, or it does not start.
    """
    fetch_jars(jar_folder(), PINS)
    broker_port, controller_port = free_ports(2)
    more = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    text = broker_properties(1, broker_port, controller_port, partitions) + more
    node = KafkaNode(folder, random_id(), text, of_jars)
    try:
        node.start()
        yield f"{HOST}:{broker_port}"
    finally:
        node.kill()


def broker_properties(node_id: int, port: int, controller_port: int, partitions: int = 1) -> str:
    """The settings of a broker; the first broker is also the controller."""
    controls = node_id == 1
    listeners = f"PLAINTEXT://{HOST}:{port}" + (f",CONTROLLER://{HOST}:{controller_port}" if controls else "")
    return f"""process.roles=broker{",controller" if controls else ""}
node.id={node_id}
controller.quorum.voters=1@{HOST}:{controller_port}
listeners={listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def _wait_for(server: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + READY_WITHIN_S
    while _READY not in log.read_text(errors="replace"):
        if server.poll() is not None or time.monotonic() > give_up:
            raise EnvironmentUnusableError(f"Kafka did not start: {_end_of(log)}")
        time.sleep(0.05)


def _end_of(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-3:])
