"""A real Kafka broker on this machine, for comparisons: Kafka from Maven Central, on free ports of 127.0.0.1.

One process is broker and controller (KRaft), as Kafka's quick start has it; all settings that are not needed for
that are Kafka's defaults. It has a JVM of its own, and 1 GiB of heap like Kafka's start script gives it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobs.benchmarks.s3_server import HOST, free_ports
from jobs.jars import class_path, fetch_jars, jar_folder
from jobs.java import find_java
from partitions.errors import EnvironmentUnusableError
from partitions.identity import random_id

PINS = "kafka.xml"
READY_WITHIN_S = 60.0
_READY = "Kafka Server started"
_LOG_SETTINGS = """<Configuration>
<Appenders><Console name="out"><PatternLayout pattern="%p %m%n"/></Console></Appenders>
<Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def connector_class_path() -> str:
    """The jars of Spark's own Kafka connector, for the class path of a driver; fetched at first use.

    Raises: EnvironmentUnusableError.
    """
    folder = jar_folder()
    fetch_jars(folder, PINS)
    return class_path(folder, PINS, "kafka-connector")


@contextmanager
def running_kafka(folder: Path, partitions: int = 1, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a broker with its data in ``folder``, which must be there; its ``host:port``. It makes topics that are
    written to, of so many ``partitions``; ``settings`` are more of its configs. It ends afterwards.

    Raises: EnvironmentUnusableError when its jars cannot be fetched, or it does not start.
    """
    jars = jar_folder()
    fetch_jars(jars, PINS)
    java: list[str | Path] = [
        find_java(os.environ).executable,
        "-Xmx1g",
        "-cp",
        class_path(jars, PINS, "kafka-broker"),
    ]
    broker_port, controller_port = free_ports(2)
    (folder / "log4j2.xml").write_text(_LOG_SETTINGS)
    properties = folder / "server.properties"
    more = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    properties.write_text(_settings(folder / "data", broker_port, controller_port, partitions) + more)
    log = folder / "server.log"
    with log.open("wb") as output:

        def tool(main: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
            command = [*java, f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}", main, *arguments]
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)

        formatting = tool("kafka.tools.StorageTool", "format", "-t", random_id(), "-c", properties)
        if formatting.wait() != 0:
            raise EnvironmentUnusableError(f"Kafka does not format its storage: {_end_of(log)}")
        server = tool("kafka.Kafka", properties)
        try:
            _wait_for(server, log)
            yield f"{HOST}:{broker_port}"
        finally:
            server.kill()
            server.wait()


def _settings(data: Path, broker_port: int, controller_port: int, partitions: int) -> str:
    return f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{HOST}:{controller_port}
listeners=PLAINTEXT://{HOST}:{broker_port},CONTROLLER://{HOST}:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
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
            raise EnvironmentUnusableError(f"Kafka does not start: {_end_of(log)}")
        time.sleep(0.05)


def _end_of(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-3:])
