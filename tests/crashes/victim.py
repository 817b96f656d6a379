"""A spark-submit as a user starts it, in its own session: it is watched, paused and killed together with
everything that it has started, and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.spark.standalone import ROOT, read, spark_environment, spark_submit
from tests.spark.waiting import wait_for

LOOK_EVERY_S = 0.003


class Victim:
    """A running job, whose output is in files."""

    def __init__(self, job: str, argv: Sequence[str], output: Path) -> None:
        """``job`` is one of ``jobs``, or the path of another script relative to the root, without its suffix."""
        script = job if "/" in job else f"jobs/{job}"
        self._output = output
        command = [
            *spark_submit(),
            *("--master", "local[2]", "--driver-memory", "512m"),
            *(f"{script}.py", *argv, "--json"),
        ]
        environ = spark_environment({"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"})
        environ["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), environ["PATH"]])
        self.began_s = time.monotonic()
        with output.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    @property
    def ended(self) -> bool:
        """Whether the job has ended by itself."""
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """The output so far."""
        return read(self._output)

    def wait(self) -> int:
        """Wait for the exit status."""
        return self._process.wait(timeout=300)

    def report(self) -> dict[str, Any] | None:
        """The last report that it has printed; None if there is none."""
        lines = self.output.splitlines()
        with suppress(ValueError, IndexError):
            found = json.loads(lines[-1])
            return found if isinstance(found, dict) else None
        return None

    def kill(self) -> None:
        """kill -9 of the process group, JVM and Python driver. The workers that the JVM had forked notice by
        themselves, and may continue a little; returns when none is left.
        """
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        wait_for("the victim's workers to end", lambda: not self._session())

    def pause(self) -> None:
        """Stop all its processes, so that others consider the driver dead."""
        for pid in self._session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the processes."""
        for pid in self._session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the job and everything that it has started."""
        self.kill()

    def _session(self) -> list[int]:
        listed = subprocess.run(["ps", "-e", "-o", "pid="], capture_output=True, text=True, check=True)
        return [pid for pid in map(int, listed.stdout.split()) if _session_of(pid) == self._process.pid]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1
