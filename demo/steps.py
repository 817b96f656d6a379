"""The steps of the demo: commands as an operator types them, their reports, and the table of all."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratalog.engine.driver.report import Value, text_table
from stratalog.jobs.java import use_java
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.clock import Clock

SUBMIT = ("spark-submit", "--properties-file", "conf/spark-defaults.conf")
_NOISE = "WARNING: Using incubator modules"
_SETTINGS = {
    "SPARK_LOCAL_IP": ("127.0.0.1", "no host name needs to resolve"),
    "SPARK_SUBMIT_OPTS": ("-XX:TieredStopAtLevel=1", "runs of seconds: the first compiler is enough"),
}
_TIMEOUT_S = 600

Totals = dict[str, int]


class StepFailedError(Exception):
    """A step did not end as required."""


@dataclass(frozen=True, slots=True)
class Done:
    """A completed step; ``wall_s`` includes the start of the process, and of Spark if it starts."""

    title: str
    report: Mapping[str, Any]
    wall_s: float

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of its report."""
        rows: Sequence[Mapping[str, Any]] = self.report.get("rows", ())
        return rows

    def sum(self, column: str, topic: str | None = None) -> int:
        """The sum of a column of its rows; only of ``topic``, if given."""
        rows = [row for row in self.rows if topic in (None, row.get("topic"))]
        return sum(row[column] for row in rows if isinstance(row.get(column), int))


@dataclass(slots=True)
class Steps:
    """Runs commands in the project's root, prints each unchanged, and writes them into ``log``."""

    root: Path
    log: Path
    clock: Clock
    done: list[Done] = field(default_factory=list)
    _written: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """The lines that a shell needs before any command."""
        activate = Path(sys.prefix, "bin", "activate")
        if activate.is_relative_to(self.root):
            self._write(f". {activate.relative_to(self.root)}")
        else:
            self._write("# in the virtual environment that has stratalog, in the project's root")
        for name, (value, why) in _SETTINGS.items():
            self._write(f"export {name}={shlex.quote(value)}  # {why}")

    def remark(self, text: str) -> None:
        """A remark for users who run the commands again."""
        self._write(f"# {text}")

    def shell(self, command: Sequence[str], title: str | None = None) -> None:
        """Run a command that only has to succeed."""
        if title is not None:
            self.remark(title)
        self._run(command)

    def submit(self, title: str, script: str, *arguments: str) -> Done:
        """A job under spark-submit; its report is the last line of its output.

        Raises: StepFailedError.
        """
        return self._report(title, (*SUBMIT, script, *arguments))

    def job(self, title: str, name: str, *arguments: str) -> Done:
        """A job in a process without a JVM, as an operator types it; its report is the last line of its output.

        Raises: StepFailedError.
        """
        return self._report(title, ("stratalog", name, *arguments))

    def _report(self, title: str, command: Sequence[str]) -> Done:
        self.remark(title)
        began = self.clock.monotonic_s()
        output = self._run(command)
        lines = output.strip().splitlines()
        try:
            report = parse_json(lines[-1])
        except (IndexError, ValueError) as error:
            raise StepFailedError(f"{shlex.join(command)} has printed no report:\n{output}") from error
        done = Done(title, report, self.clock.monotonic_s() - began)
        self.done.append(done)
        print("  " + summary(done), flush=True)
        return done

    def _run(self, command: Sequence[str]) -> str:
        self._write(shlex.join(command))
        try:
            ended = subprocess.run(
                command,
                cwd=self.root,
                env=_environment(),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailedError(f"it has not ended after {_TIMEOUT_S} s") from error
        errors = "\n".join(line for line in ended.stderr.splitlines() if not line.startswith(_NOISE))
        if ended.returncode != 0:
            raise StepFailedError(f"it ended with {ended.returncode}\n{ended.stdout}{errors}")
        if errors:
            print(errors, file=sys.stderr)
        return ended.stdout

    def _write(self, line: str) -> None:
        if line.startswith("#"):
            print()
        print(line if line.startswith("#") else f"$ {line}", flush=True)
        self._written.append(line)
        if self.log.parent.is_dir():
            head = "#!/usr/bin/env bash\n# The commands of the demo, to run in the project's root.\nset -e\n"
            self.log.write_text(head + "\n".join(self._written) + "\n", encoding="utf-8")


def _environment() -> dict[str, str]:
    """This process's environment, with ``spark-submit`` and ``python`` from the folder of its interpreter.

    Raises: EnvironmentUnusableError without a Java that Spark runs on.
    """
    environ = dict(os.environ)
    use_java(environ)
    environ |= {name: value for name, (value, _) in _SETTINGS.items()}
    environ["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), environ.get("PATH", "")])
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environ.pop(name, None)
    return environ


def totals(done: Done) -> Totals:
    """Records, bytes and files that a step has moved, without those that are zero."""
    match done.report["operation"]:
        case "append" if "batches" in done.report["totals"]:
            return {"records": done.sum("records"), "bytes": done.sum("bytes"), "files": done.sum("files")}
        case "append":
            new = [row for row in done.rows if row["outcome"] == "acknowledged"]
            moved = sum(row["records"] for row in new)
            return {"records": moved, "bytes": done.report["totals"]["bytes"], "files": len(new)}
        case "replicate" | "bootstrap":
            return {"bytes": done.sum("copied_bytes"), "files": done.sum("copied_files")}
        case "merge":
            return {"bytes": done.sum("written_bytes"), "files": done.sum("segments")}
        case "tier":
            return {"bytes": done.sum("uploaded_bytes"), "files": done.sum("uploaded_files")}
        case "retain":
            return {"bytes": done.sum("deleted_bytes"), "files": done.sum("deleted_files")}
        case "verify":
            return {"bytes": done.sum("bytes"), "files": done.sum("files") + done.sum("remote_files")}
    known = ("records", "bytes", "files")
    return {name: value for name in known if isinstance(value := done.report["totals"].get(name), int)}


def summary(done: Done) -> str:
    """One line about a step."""
    parts = [f"{value:,} {name}" for name, value in totals(done).items()]
    if "storage" in done.report:
        parts.append(f"{done.report['storage']['requests']:,} storage requests")
    parts.append(f"{done.report['seconds']:.1f} s ({done.wall_s:.1f} s with the start)")
    return ", ".join(parts)


def table(steps: Sequence[Done]) -> list[str]:
    """The lines of the table of all steps."""
    rows: list[dict[str, Value]] = [
        {
            "step": done.title,
            "records": None,
            "bytes": None,
            "files": None,
            **totals(done),
            "requests": done.report["storage"]["requests"] if "storage" in done.report else None,
            "seconds": round(float(done.report["seconds"]), 1),
            "with start": round(done.wall_s, 1),
        }
        for done in steps
    ]
    return text_table(["step", "records", "bytes", "files", "requests", "seconds", "with start"], rows)
