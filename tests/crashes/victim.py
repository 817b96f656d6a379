"""A spark-submit as a user starts it, in a session of its own: it is watched, paused, killed, with everything
that it has started and nothing else.
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
    """A job that runs; its output is in files."""

    def __init__(self, job: str, argv: Sequence[str], output: Path) -> None:
        """``job`` is one of ``jobs``, or the path of another script from the root on, without its ending."""
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
        """Seconds since it was started."""
        return time.monotonic() - self.began_s

    @property
    def ended(self) -> bool:
        """Whether the job has ended by itself."""
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """What it has said so far."""
        return read(self._output)

    def wait(self) -> int:
        """The exit status, once it has one."""
        return self._process.wait(timeout=300)

    def report(self) -> dict[str, Any] | None:
        """The report that it has printed last; None when there is none."""
        lines = self.output.splitlines()
        with suppress(ValueError, IndexError):
            found = json.loads(lines[-1])
            return found if isinstance(found, dict) else None
        return None

    def kill(self) -> None:
        """kill -9 of the process group, JVM and Python driver. The workers that the JVM had forked find out by
        themselves, and may do a little more meanwhile; returns when none is left.
        """
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        wait_for("the victim's workers to end", lambda: not self._session())

    def pause(self) -> None:
        """All its processes stand still: a driver that others take for dead."""
        for pid in self._session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """They run again, and know nothing of it."""
        for pid in self._session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Whatever it does: nothing of it is left."""
        self.kill()

    def _session(self) -> list[int]:
        listed = subprocess.run(["ps", "-e", "-o", "pid="], capture_output=True, text=True, check=True)
        return [pid for pid in map(int, listed.stdout.split()) if _session_of(pid) == self._process.pid]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1
