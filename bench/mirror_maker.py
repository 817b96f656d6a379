"""Runs Kafka's own MirrorMaker, in a separate process, from one broker to another, as its documentation describes.

Its settings are the defaults, with these exceptions. All topics have one replica, because each cluster has one
broker. Heartbeats and ACLs, which are not compared, are off. There is one task for each of two cores. Only
committed records are read, as by the mirror here.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from bench import kafka_topics
from stratalog.jobs.jars import class_path, fetch_jars, jar_folder
from stratalog.jobs.java import find_java
from stratalog.partitions.errors import EnvironmentUnusableError

PINS = "mirror-maker.xml"
TASKS = 2
_REPLICATED = (
    *("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic."),
    *("offset.storage.", "status.storage.", "config.storage."),
)
"""The topics with a replication factor."""
_WITHIN_S = 900.0
_LOG_SETTINGS = """<Configuration>
<Appenders><Console name="out"><PatternLayout pattern="%p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class MirrorMaker:
    """A MirrorMaker for one topic, not started yet."""

    def __init__(self, folder: Path, source: str, target: str, alias: str, topic: str, more: str = "") -> None:
        """``source`` and ``target`` are ``host:port``. With another ``alias`` of the source, MirrorMaker begins
        again, because the alias is part of the names of the target's topics that store its progress. ``more`` are
        additional lines of its properties.

        Raises: EnvironmentUnusableError when its jars cannot be fetched.
        """
        fetch_jars(jar_folder(), PINS)
        folder.mkdir(parents=True)
        self.topic = f"{alias}.{topic}"
        """The topic's name in the target."""
        self._folder, self._target = folder, target
        self._properties = folder / "mm2.properties"
        self._properties.write_text(properties(source, target, alias, topic) + more)
        (folder / "log4j2.xml").write_text(_LOG_SETTINGS)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process without waiting; it begins to copy after some seconds."""
        command: list[str | Path] = [find_java(os.environ).executable, "-Xms256m", "-Xmx2g"]
        command += [
            "-cp",
            class_path(jar_folder(), PINS),
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}",
        ]
        command += ["org.apache.kafka.connect.mirror.MirrorMaker", self._properties]
        with (self._folder / "mm2.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self._folder)

    def copy(self, partitions: int, records: int) -> tuple[float, float]:
        """Copy this number of records, and end. Returns the seconds and the processor seconds of all of them,
        extrapolated from the second half: the start and the warming up of the JVM are not counted.

        Raises: EnvironmentUnusableError.
        """
        self.start()
        try:
            half = self.wait_for(partitions, records // 2)
            half_s, half_processor_s = time.monotonic(), self._processor_s()
            end = self.wait_for(partitions, records)
            seconds, processor_s = time.monotonic() - half_s, self._processor_s() - half_processor_s
        finally:
            self.kill()
        if end == half:
            raise EnvironmentUnusableError("MirrorMaker finished between two checks: copy more bytes")
        whole = records / (end - half)
        return seconds * whole, processor_s * whole

    def wait_for(self, partitions: int, offsets: int) -> int:
        """Wait until the target has this number of offsets; returns the number that it has.

        Raises: EnvironmentUnusableError.
        """
        give_up = time.monotonic() + _WITHIN_S
        while (held := sum(kafka_topics.log_ends(self._target, self.topic, partitions))) < offsets:
            if time.monotonic() > give_up:
                raise EnvironmentUnusableError(f"MirrorMaker copied {held:,} records, and no more")
            time.sleep(0.05)
        return held

    def _processor_s(self) -> float:
        assert self._process is not None
        _, _, fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")
        utime, stime = fields.split()[11:13]
        return (int(utime) + int(stime)) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def properties(source: str, target: str, alias: str, topic: str) -> str:
    """Lines of ``mm2.properties``: the topic goes from the source to the target, and not back."""
    return "".join(
        f"{line}\n"
        for line in (
            f"clusters = {alias}, target",
            f"{alias}.bootstrap.servers = {source}",
            f"target.bootstrap.servers = {target}",
            f"{alias}->target.enabled = true",
            f"{alias}->target.topics = {topic}",
            f"{alias}.consumer.isolation.level = read_committed",
            f"target->{alias}.enabled = false",
            "emit.heartbeats.enabled = false",
            "sync.topic.acls.enabled = false",
            f"tasks.max = {TASKS}",
            *(f"{name}replication.factor = 1" for name in _REPLICATED),
        )
    )
