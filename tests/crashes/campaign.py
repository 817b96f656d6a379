"""Which job is struck when, by what, and what was found afterwards."""

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
"""In this order each job finds something to do."""

_EARLY = 0.1
"""How often a job is struck while it starts, and not from its first write on."""
_AGAIN = 0.25
"""How often a job that was started again is struck again."""
_PAUSED = 0.2
"""How often a driver is paused, and goes on after another one has done its work, a zombie."""
_LATE = 1.1
"""Up to where moments are drawn, as a part of the time from first write to last."""


@dataclass(slots=True)
class Pace:
    """How long a job takes, as its last run that was left in peace has shown."""

    start_s: float = 6.0
    """Until it first writes."""
    work_s: float = 1.0
    """From there to its last write."""


@dataclass(slots=True)
class Tally:
    """What happened to one job: how often it was struck, before, while and after it did its work, and how often
    that was a pause; how often it was started again in peace, and found appends that were there already (one a
    partition); the most files without a name that lay about; files that were half written, or wrong otherwise.
    """

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("struck", "before", "while", "after", "paused", "started again", "duplicates", "litter", "findings"),
            0,
        )
    )


class Campaign:
    """One world, and one seed, from which the jobs, the faults and the moments follow (what a moment meets
    depends on the machine)."""

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
        """Strike so many times; raises AssertionError for whatever is not as it should be."""
        steps = [job for jobs in ROUNDS for job in jobs]
        done = 0
        while done < strikes:
            done += self._step(steps[0], strikes - done)
            steps.append(steps.pop(0))
        self._finish()

    def table(self) -> str:
        """What happened, by job."""
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
        """One job, struck once or more often, then left in peace; how often it was struck."""
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
        paused = self._rng.random() < _PAUSED and job != "stream"  # Spark allows one driver to a checkpoint
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
                told = self._zombie_says(victim, status)
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
        fault = f"paused, went on as a zombie, and said: {told}" if paused else "killed"
        self._say(
            f"{self._victims:4} {job:13} {moment:29} {hit:6} its work: {fault}; "
            f"files without a name: {staged}, files half written or wrong: {len(findings)}"
        )
        assert not findings, findings

    def _zombie_says(self, victim: Victim, status: int) -> str:
        """Clear words, whatever it found."""
        report = victim.report()
        assert status in (0, 1), victim.output
        assert report is not None, victim.output
        assert "Traceback" not in victim.output, victim.output
        codes = sorted({failure["code"] for failure in report["failures"]})
        outcomes = sorted({str(row["outcome"]) for row in report["rows"] if "outcome" in row})
        return ", ".join(codes or outcomes or ["done"])

    def _in_peace(self, job: str, argv: list[str]) -> None:
        """The job again, to its end: it must do all that was left."""
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
        """The faults have stopped: everything converges, and is the source."""
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
    """Until an age, or for a while after the job's first write; not beyond its end."""
    while not victim.ended:
        if until_s is None and begun():
            until_s = victim.age_s + delay_s
        if until_s is not None and victim.age_s >= until_s:
            return
        time.sleep(LOOK_EVERY_S)
