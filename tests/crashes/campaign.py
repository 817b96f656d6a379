"""The schedule of a campaign: which job is killed, when and how; and its findings."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stratalog.engine.driver.report import Value, text_table
from tests.crashes.victim import LOOK_EVERY_S, Victim
from tests.crashes.world import TOPIC, World

ROUNDS = (
    ("append", "append-leader", "replicate", "tier", "retain"),
    ("stream", "append-leader", "replicate", "tier", "retain"),
)
"""The order in which each job has work to do."""

_EARLY = 0.1
"""The fraction of jobs that are killed while they start, instead of after their first write."""
_AGAIN = 0.25
"""The fraction of restarted jobs that are killed again."""
_PAUSED = 0.2
"""The fraction of drivers that are paused and continue, as zombies, after another driver has done their work."""
_LATE = 1.1
"""The latest moment that a run may draw, as a fraction of the time from the first write to the last."""


@dataclass(slots=True)
class Pace:
    """The durations of a job, as measured in its last undisturbed run."""

    start_s: float = 6.0
    """The time until its first write."""
    work_s: float = 1.0
    """The time from the first write to the last."""


@dataclass(slots=True)
class Tally:
    """The history of one job, in counts: kills before, during and after its work, and the pauses among them;
    undisturbed restarts; appends that were found to be done (one per partition); the most files without a name;
    and half-written or otherwise wrong files.
    """

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("struck", "before", "while", "after", "paused", "started again", "duplicates", "litter", "findings"),
            0,
        )
    )


class Campaign:
    """One world and one seed, which determines the jobs, the faults and the moments (their effect depends on the
    machine)."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.world = World(folder)
        self._rng = random.Random(seed)
        self._say = say
        self._outputs = folder / "output"
        self._outputs.mkdir()
        self._victims = 0
        self._paces: dict[str, Pace] = {}
        self.tallies: dict[str, Tally] = {}

    def run(self, strikes: int) -> None:
        """Strike the given number of times. Raises: AssertionError for any violation."""
        steps = [job for jobs in ROUNDS for job in jobs]
        done = 0
        while done < strikes:
            done += self._step(steps[0], strikes - done)
            steps.append(steps.pop(0))
        self._finish()

    def table(self) -> str:
        """The counts by job."""
        total = Tally()
        for tally in self.tallies.values():
            for name, count in tally.counts.items():
                total.counts[name] = (
                    max(total.counts[name], count) if name == "litter" else total.counts[name] + count
                )
        rows: list[dict[str, Value]] = [
            {"job": job, **tally.counts} for job, tally in [*self.tallies.items(), ("all", total)]
        ]
        return "\n".join(text_table(list(rows[0]), rows))

    def _step(self, job: str, most: int) -> int:
        """Run one job, strike it at least once, then let it finish; returns the number of strikes."""
        argv = self._arguments(job)
        struck = 0
        while struck < most and (struck == 0 or self._rng.random() < _AGAIN):
            struck += 1
            self._strike(job, argv)
        self._in_peace(job, argv)
        if job != "append-leader":
            self.world.check_contents()
        return struck

    def _arguments(self, job: str) -> list[str]:
        cluster = ["--cluster", str(self.world.file)]
        if job not in ("append", "append-leader", "stream"):
            return [job, *cluster]
        producer = "stream" if job == "stream" else "bulk"
        file, sequence = self.world.make_input(producer)
        record = ["--key", "k", "--value", "v", "--partition", "p", "--timestamp", "at", "--order-by", "timestamp"]
        argv = ["append", *cluster, TOPIC, *record, "--producer", producer]
        if job == "stream":
            checkpoint = str(self.world.folder / "checkpoint")
            return [*argv, "--input", str(file.parent), "--stream", "--checkpoint", checkpoint]
        acks = "leader" if job == "append-leader" else "all"
        return [*argv, "--input", str(file), "--sequence", str(sequence), "--acks", acks]

    def _start(self, argv: list[str]) -> Victim:
        self._victims += 1
        return Victim(argv[0], argv[1:], self._outputs / f"{self._victims:04}.txt")

    def _strike(self, job: str, argv: list[str]) -> None:
        counts = self.tallies.setdefault(job, Tally()).counts
        pace = self._paces.setdefault(job, Pace())
        early = self._rng.random() < _EARLY
        delay_s = self._rng.uniform(0, pace.start_s if early else pace.work_s * _LATE)
        paused = self._rng.random() < _PAUSED and job != "stream"  # Spark allows one driver per checkpoint
        before = self.world.names()
        victim = self._start(argv)
        try:
            _wait(victim, delay_s if early else None, lambda: self.world.names() != before, delay_s)
            hit = (
                "after"
                if victim.ended or victim.report()
                else "while"
                if self.world.names() != before
                else "before"
            )
            if paused:
                victim.pause()
                self._in_peace(job, argv)
                victim.go_on()
                status = victim.wait()
                found = self._zombie_says(victim, status)
            victim.kill()
        finally:
            victim.end()
        staged, findings = self.world.staged(), self.world.findings()
        counts["struck"] += 1
        counts[hit] += 1
        counts["paused"] += paused
        counts["litter"] = max(counts["litter"], staged)
        counts["findings"] += len(findings)
        moment = f"{delay_s:.2f} s after its {'start' if early else 'first write'}"
        fault = f"paused, went on as a zombie, and said: {found}" if paused else "killed"
        self._say(
            f"{self._victims:4} {job:13} {moment:29} {hit:6} its work: {fault}; "
            f"files without a name: {staged}, files half written or wrong: {len(findings)}"
        )
        assert not findings, findings

    def _zombie_says(self, victim: Victim, status: int) -> str:
        """Check that a zombie ends with a clear message."""
        report = victim.report()
        assert status in (0, 1), victim.output
        assert report is not None, victim.output
        assert "Traceback" not in victim.output, victim.output
        codes = sorted({failure["code"] for failure in report["failures"]})
        outcomes = sorted({str(row["outcome"]) for row in report["rows"] if "outcome" in row})
        return ", ".join(codes or outcomes or ["done"])

    def _in_peace(self, job: str, argv: list[str]) -> None:
        """Run the job again to its end: it must do all remaining work."""
        counts = self.tallies.setdefault(job, Tally()).counts
        pace = self._paces.setdefault(job, Pace())
        known = self.world.names()
        writes: list[float] = []
        victim = self._start(argv)
        try:
            while not victim.ended:
                now = self.world.names()
                if now != known:
                    known = now
                    writes.append(victim.age_s)
                time.sleep(LOOK_EVERY_S)
            status = victim.wait()
        finally:
            victim.end()
        assert status == 0, victim.output
        report = victim.report()
        assert report is not None, victim.output
        assert report["failures"] == [], report["failures"]
        if writes:
            pace.start_s, pace.work_s = writes[0], writes[-1] - writes[0]
        counts["started again"] += 1
        if argv[0] == "append":
            counts["duplicates"] += sum(
                row.get("outcome") == "duplicate" or row.get("files") == 0 for row in report["rows"]
            )

    def _finish(self) -> None:
        """Run without faults: everything converges, and equals the source."""
        self.world.converge()
        records = self.world.check_contents()
        self.world.check_replicas()
        remote = self.world.check_remote()
        assert self.world.findings() == []
        litter = self.world.staged()
        self._say(
            f"{records:,} records, all of the source, each once, in order; {remote:,} of them in the remote table"
        )
        self._say(f"three replicas with the same bytes; litter: {litter} files that never got a name")


def _wait(victim: Victim, until_s: float | None, begun: Callable[[], bool], delay_s: float) -> None:
    """Wait until the job has a certain age, or for a while after its first write, but not beyond its end."""
    while not victim.ended:
        if until_s is None and begun():
            until_s = victim.age_s + delay_s
        if until_s is not None and victim.age_s >= until_s:
            return
        time.sleep(LOOK_EVERY_S)
