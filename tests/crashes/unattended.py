"""A cluster on a real S3 server that only ``maintain`` looks after, while processes are killed and a broker is
lost:

    python -m tests.crashes.unattended --minutes 30 --seed 1

Three appenders with acks=all (one of them with transactions) and ``maintain --every`` are processes. At moments
determined by the seed one of them gets SIGKILL, and is restarted. Half-way every object of a broker is deleted; a
little later the operator follows docs/operations.md: ``bootstrap``, and ``quorum replace-voter``, repeated until
they succeed. At the end the appenders stop, and ``maintain`` continues until no work is left. Then each
acknowledged record must exist once and in order, every byte of every copy must be intact, all replicas must be in
the ISR, folders must be short, and all old segments tiered. A line is printed at intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.s3_server import OTHER_CREDENTIALS, S3Endpoint, credentials, running_server
from tests.crashes.appender import TRANSACTIONAL, Ack, acks
from tests.crashes.s3_world import BROKERS, S3World

APPENDERS = ("first", "second", TRANSACTIONAL)
RATE = 1.0
"""The maximum number of appends per second of each appender."""
LINES = 30
"""The number of lines of the table in a run."""
SHORTEST_SEGMENT_MS, LONGEST_SEGMENT_MS = 6_000, 60_000
KILLED_AFTER_S = (4.0, 30.0)
"""The time between two kills."""
AWAY_S = (0.0, 3.0)
"""The time before a killed process is restarted."""
LOST_S = (8.0, 15.0)
"""The time before the operator acts."""
SETTLED_WITHIN_S = 300.0
STOPPED_WITHIN_S = 120.0
TRIES = 20
LOOK_EVERY_S = 0.2
HEADINGS = (
    *("s", "appends", "median ms", "worst s", "requests", "files", "most", "metadata"),
    *("appender MB", "maintain MB", "rounds", "a round", "kills"),
)
NOTE = (
    "requests: of an append, the median. files: in the folder of a replica of the appenders' topics, on average, "
    "and at most; of the metadata log. MB: resident, of the largest process. a round: requests of a round of "
    "maintain, the median."
)


class Process:
    """A command that is restarted after a kill; its output goes to one file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = command, log
        self._running: subprocess.Popen[bytes] | None = None
        self._again_s: float | None = None
        self.start()

    def start(self) -> None:
        """Start the command in its own session."""
        with self.log.open("ab") as output:
            self._running = subprocess.Popen(self.command, stdout=output, stderr=output, start_new_session=True)

    def kill(self, away_s: float) -> None:
        """Send SIGKILL; ``look`` restarts the process after a delay."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()
        self._running, self._again_s = None, time.monotonic() + away_s

    def look(self) -> None:
        """Restart the process when it is time. Raises: AssertionError if it has ended by itself."""
        if self._running is None:
            if self._again_s is not None and time.monotonic() >= self._again_s:
                self.start()
            return
        status = self._running.poll()
        assert status is None, f"{self.command} has ended with {status}:\n{self.tail()}"

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status. Raises: TimeoutExpired if the process hangs."""
        if self._running is None:
            self.start()
        assert self._running is not None
        self._running.terminate()
        return self._running.wait(STOPPED_WITHIN_S)

    def end(self) -> None:
        """Kill the process and everything that it has started."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    @property
    def runs(self) -> bool:
        return self._running is not None

    @property
    def resident_mb(self) -> float:
        """The resident memory; 0 while the process does not run."""
        if self._running is None:
            return 0.0
        pages = int(Path(f"/proc/{self._running.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


class Unattended:
    def __init__(
        self, folder: Path, endpoint: S3Endpoint, minutes: float, seed: int, say: Callable[[str], None]
    ) -> None:
        self._folder, self._seconds, self._seed, self._say = folder, minutes * 60, seed, say
        self._rng = random.Random(seed)
        segment_ms = int(min(LONGEST_SEGMENT_MS, max(SHORTEST_SEGMENT_MS, self._seconds * 1000 / LINES)))
        self._world = S3World(folder, endpoint, segment_ms)
        file = str(self._world.file)
        self._acks = {name: folder / f"{name}.acks" for name in APPENDERS}
        self._processes = {
            name: Process(_appender(file, name, seed, of), folder / f"{name}.log")
            for name, of in self._acks.items()
        }
        every = f"{segment_ms // 6_000}s"
        command = _job("maintain", file, "--every", every, "--budget", "30s", "--json")
        self._maintain = self._processes["maintain"] = Process(command, folder / "maintain.log")
        self._lost = self._rng.choice(BROKERS)
        self._operator: list[list[str]] = []
        self._job: subprocess.Popen[bytes] | None = None
        self._tries, self._kills = 0, 0
        self._seen = dict.fromkeys(APPENDERS, 0)
        self._rounds = 0

    def run(self) -> dict[str, int]:
        """Run, and return the records by topic. Raises: AssertionError for any violation."""
        try:
            self._say(NOTE)
            self._say(" ".join(f"{heading:>11}" for heading in HEADINGS))
            self._disturb()
            self._stop_appenders()
            self._settle()
            status = self._maintain.stop()
            assert status == 0, f"maintain ended with {status}:\n{self._maintain.tail()}"
            found = self._world.check(self._seed, {name: len(acks(file)) for name, file in self._acks.items()})
            self._check_acks()
            self._say(f"errors by process: {self._errors()}")
            return found
        finally:
            for process in self._processes.values():
                process.end()
            if self._job is not None:
                self._job.kill()
                self._job.wait()

    def _disturb(self) -> None:
        """Disturb the cluster until the time is over and the operator has finished."""
        rng, began = self._rng, time.monotonic()
        kill_s, line_s, lost_s, operator_s = rng.uniform(*KILLED_AFTER_S), 0.0, self._seconds / 2, None
        while (now_s := time.monotonic() - began) < self._seconds or self._operator or lost_s is not None:
            for process in self._processes.values():
                process.look()
            if now_s >= kill_s:
                name = rng.choice(sorted(self._processes))
                if self._processes[name].runs:
                    self._processes[name].kill(rng.uniform(*AWAY_S))
                    self._kills += 1
                kill_s = now_s + rng.uniform(*KILLED_AFTER_S)
            if lost_s is not None and now_s >= lost_s:
                lost = self._world.lose(self._lost)
                self._say(f"{now_s:.0f} s: broker {self._lost} is lost, with {lost:,} objects")
                lost_s, operator_s = None, now_s + rng.uniform(*LOST_S)
                broker, file = str(self._lost), str(self._world.file)
                self._operator = [
                    _job("bootstrap", file, broker),
                    _job("quorum", file, "replace-voter", broker),
                ]
            if operator_s is not None and now_s >= operator_s:
                self._operate(now_s)
            if now_s >= line_s:
                self._line(now_s)
                line_s = now_s + self._seconds / LINES
            time.sleep(LOOK_EVERY_S)

    def _operate(self, now_s: float) -> None:
        """Run the operator's next command, or repeat the last one if it failed."""
        if not self._operator:
            return
        log = self._folder / "operator.log"
        if self._job is None:
            with log.open("ab") as output:
                self._job = subprocess.Popen(self._operator[0], stdout=output, stderr=output)
            return
        if (status := self._job.poll()) is None:
            return
        self._job = None
        self._tries += 1
        job = " ".join(self._operator[0][2:3])
        self._say(f"{now_s:.0f} s: {job} of broker {self._lost}: exit status {status}")
        if status == 0:
            self._operator.pop(0)
        assert self._tries < TRIES, log.read_text(encoding="utf-8")

    def _stop_appenders(self) -> None:
        for name in APPENDERS:
            process = self._processes[name]
            status = process.stop()
            assert status in (0, -signal.SIGTERM), f"{name} ended with {status}:\n{process.tail()}"

    def _settle(self) -> None:
        """Wait until no work is left, and a round of ``maintain`` has ended without findings."""
        began, rounds = time.monotonic(), len(self._reports())
        while found := self._open_work(rounds):
            self._maintain.look()
            took_s = time.monotonic() - began
            assert took_s < SETTLED_WITHIN_S, f"after {took_s:.0f} s: " + "\n".join(
                [*found, self._maintain.tail()]
            )
            time.sleep(1)
        self._say(f"nothing is open {time.monotonic() - began:.0f} s after the last append")

    def _open_work(self, rounds: int) -> list[str]:
        found = self._world.open_work()
        new = self._reports()[rounds:]
        if not new:
            found.append("no round of maintain has ended")
        elif new[-1]["failures"]:
            found.append(f"the last round of maintain: {new[-1]['failures']}")
        return found

    def _check_acks(self) -> None:
        for name, file in self._acks.items():
            sequences = [ack.sequence for ack in acks(file)]
            assert sequences == list(range(len(sequences))), f"{name}: sequences are missing"
            assert sequences, f"{name} has appended nothing"

    def _line(self, now_s: float) -> None:
        new: list[Ack] = []
        for name, file in self._acks.items():
            found = acks(file)
            new += found[self._seen[name] :]
            self._seen[name] = len(found)
        reports = self._reports()
        rounds, self._rounds = reports[self._rounds :], len(reports)
        files = self._world.files()
        appenders = [self._processes[name].resident_mb for name in APPENDERS]
        cells = (
            f"{now_s:.0f}",
            str(len(new)),
            f"{median(ack.seconds for ack in new) * 1000:.0f}" if new else "",
            f"{max(ack.seconds for ack in new):.1f}" if new else "",
            f"{median(ack.requests for ack in new):.0f}" if new else "",
            f"{files.average:.1f}",
            str(files.most),
            str(files.metadata),
            f"{max(appenders):.0f}",
            f"{self._maintain.resident_mb:.0f}",
            str(len(rounds)),
            f"{median(_requests(one) for one in rounds):.0f}" if rounds else "",
            str(self._kills),
        )
        self._say(" ".join(f"{cell:>11}" for cell in cells))

    def _errors(self) -> dict[str, dict[str, int]]:
        """Errors, keyed by process and code. An appender retries, and so does the next round of ``maintain``."""
        found: dict[str, Counter[str]] = {name: Counter() for name in self._processes}
        for name in APPENDERS:
            for line in self._processes[name].log.read_text(encoding="utf-8").splitlines():
                found[name][line.split(": ")[1]] += 1
        for report in self._reports():
            failures = report["failures"]
            assert isinstance(failures, list)
            found["maintain"].update(failure["code"] for failure in failures)
        return {name: dict(codes) for name, codes in found.items()}

    def _reports(self) -> list[dict[str, object]]:
        """The reports of the rounds of maintain; a killed one may have left half a line."""
        lines = self._maintain.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"time"') and line.endswith("}")]


def _requests(report: dict[str, object]) -> int:
    storage = report["storage"]
    assert isinstance(storage, dict)
    return int(storage["requests"])


def _appender(file: str, name: str, seed: int, of: Path) -> list[str]:
    return [sys.executable, "-m", "tests.crashes.appender", file, name, str(seed), str(of), str(RATE)]


def _job(job: str, file: str, *argv: str) -> list[str]:
    return [sys.executable, "-m", f"stratalog.jobs.{job}", "--cluster", file, *argv]


def main() -> None:
    """Run; the folder stays if a fault is found."""
    parser = argparse.ArgumentParser(
        prog="tests.crashes.unattended", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder with all data and output")
    given = parser.parse_args()
    os.environ.update(credentials())
    for variable in OTHER_CREDENTIALS:
        os.environ.pop(variable, None)
    folder = Path(tempfile.mkdtemp(prefix="stratalog-unattended-"))
    print(f"{given.minutes:g} minutes, seed {given.seed}, in {folder}", flush=True)
    try:
        with running_server(folder) as endpoint:
            run = Unattended(folder, endpoint, given.minutes, given.seed, lambda line: print(line, flush=True))
            print(f"{run.run()}: each record that was acknowledged, once and in order")
    except BaseException:
        print(f"seed {given.seed}: it stays in {folder}", flush=True)
        raise
    if not given.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
