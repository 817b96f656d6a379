"""A cluster on folders whose health the command, the page and the metrics show. The shown commands repair it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratalog.jobs.main import job_of, main
from tests.bridges.test_page import content_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.test_metrics_job import of, samples

HOUR_MS = 3_600_000
SMALL = {
    "health.log.dir.max.used.ratio": "1",  # the test must not depend on the fullness of this machine's disk
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Patient:
    """A cluster of folders, operated through the jobs alone."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], **of_cluster: Any) -> None:
        self.live = LiveCluster(folder, on_disk=True, **of_cluster)
        self._capsys = capsys
        self.live.cluster.topics.alter_configs(None, SMALL)
        self.monkeypatch = pytest.MonkeyPatch()
        """The test's monkeypatch, for faults that no file can cause."""

    def job(self, *argv: str) -> int:
        status = main([*argv, "--cluster", str(self.live.file)])
        self._capsys.readouterr()
        return status

    def found(self) -> dict[str, dict[str, Any]]:
        """The first finding of each kind; the exit status must be 1 if one is an error. The page must show them
        with their commands, and the metrics must count them, except for a cluster that cannot be opened: it is not
        up.
        """
        self._capsys.readouterr()
        before = self.live.on_brokers()
        status = main(["health", "--json", "--cluster", str(self.live.file)])
        assert self.live.on_brokers() == before, "it only reads"
        report = json.loads(self._capsys.readouterr().out.splitlines()[-1])
        assert status == int(any(row["severity"] == "error" for row in report["rows"]))
        assert report["ok"] == (status == 0)
        found: dict[str, dict[str, Any]] = {}
        for row in report["rows"]:
            found.setdefault(row["finding"], row)
            program, job, *words = shlex.split(row["do"])
            if program == "stratalog":
                job_of(job).parser().parse_args(words)
        assert {kind: row["do"] for kind, row in found.items()} == self._on_the_page()
        assert found.keys() == self._in_the_metrics()
        return found

    def _on_the_page(self) -> dict[str, str]:
        page = self.live.folder / "report.html"
        assert self.job("report", "-o", str(page)) == 0
        shown = content_of(page.read_text())["health"]["findings"]
        return {one["kind"]: one["do"] for one in reversed(shown)}

    def _in_the_metrics(self) -> set[str]:
        main(["metrics", "--cluster", str(self.live.file)])
        counted = samples(self._capsys.readouterr().out)
        if counted[of("stratalog_up")] == 0:
            return {"current-leader"}
        return {dict(labels)["finding"] for name, labels in counted if name == "stratalog_findings"}

    def figures(self) -> dict[str, Any]:
        self._capsys.readouterr()
        main(["health", "--json", "--cluster", str(self.live.file)])
        totals: dict[str, Any] = json.loads(self._capsys.readouterr().out.splitlines()[-1])["totals"]
        return totals

    def follow(self, row: dict[str, Any]) -> None:
        """Run the command that a finding shows."""
        program, *argv = shlex.split(row["do"])
        if program == "stratalog":
            main(argv)
        else:
            interpreter = sys.executable if program == "python" else program
            path = f"{self.live.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
            subprocess.run([interpreter, *argv], check=True, env={**os.environ, "PYTHONPATH": "", "PATH": path})
        self._capsys.readouterr()

    def repair(self) -> None:
        """Follow ``health``, the most urgent finding first, until nothing is found."""
        for _ in range(5):
            found = self.found()
            if not found:
                return
            self.follow(next(iter(found.values())))
        raise AssertionError(f"still there: {found}")


def in_good_health(made: Patient, *, tiered: bool = False) -> Patient:
    """Topic ``t`` on all three brokers, the first of which votes; the topic has records, and was maintained."""
    if tiered:
        made.live.tiered()
    else:
        made.live.topic()
    made.live.fill("abc")
    assert made.job("maintain") == 0
    assert made.found() == {}
    return made


def files(live: LiveCluster, broker: int) -> list[Path]:
    return sorted((live.root(broker) / live.replica(broker).folder).glob("*.parquet"))
