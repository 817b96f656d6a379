"""Runs a producer for an hour, with only ``maintain`` alongside, and measures whether the cluster stays as fast as
it was at the beginning.

    python -m bench.hour                              prints a line per minute, and compares the end with the
                                                      beginning
    python -m bench.hour --seconds 300                runs for five minutes
    python -m bench.hour --file-delete-delay 10000    sets file.delete.delay.ms; all other configs are defaults

The producer makes ``--rate`` small appends per second (5), to ``--partitions`` partitions (20) in turn, with three
replicas and acks=all, on a file system in memory if there is one. A consumer group commits every
``--commit-every`` seconds (5; 0: never). ``maintain --every 30s`` runs in a separate process. A late append is
made immediately; the number of appends per minute shows whether the rate was reached. At the end, a deep
``verify`` checks everything, and the records are counted. The benchmark needs no Spark, and is not part of
``make bench``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from bench.bench import TMPFS, TOPIC, Bench, BenchCluster
from bench.growth import RECORDS, REPLICAS, append
from bench.measuring import seconds_of
from bench.options import bench_options
from bench.table import Cells, ratio_text, render
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.jobs.arguments import duration
from stratalog.partitions.offsets import FoundOffset
from stratalog.partitions.paths import METADATA_TOPIC

MINUTE_S = 60
ENDS = 5
"""The number of minutes to compare at the beginning and at the end; for a shorter run, a third of it."""
WARM_UP = 3
"""Turns over all partitions before the measurement, because the first work of a process is not part of an append.
"""


@dataclass(slots=True)
class Minute:
    """The measurements of a minute, and the state at its end."""

    headings: ClassVar[tuple[str, ...]] = (
        *("minute", "appends", "median ms", "p99 ms", "CPU ms", "commit ms", "files", "most", "group's"),
        *("metadata", "producer MB", "maintain MB"),
    )
    note: ClassVar[str] = (
        "CPU: of the producer's process per append, including its background work. Files: in the folder of a "
        "replica (average and maximum), in the largest folder of the consumer offsets, and in the metadata log. "
        "MB: resident memory."
    )

    number: int
    append_s: list[float] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    files: float = 0.0
    most_files: int = 0
    group_files: int = 0
    metadata_files: int = 0
    producer_mb: float = 0.0
    maintain_mb: float = 0.0

    @property
    def cpu_s_each(self) -> float:
        """CPU seconds per append."""
        return self.cpu_s / max(1, len(self.append_s))

    @property
    def cells(self) -> tuple[str, ...]:
        """The minute as texts, one for each of ``headings``."""
        return (
            str(self.number),
            str(len(self.append_s)),
            f"{middle(self.append_s) * 1000:.1f}",
            f"{p99(self.append_s) * 1000:.0f}",
            f"{self.cpu_s_each * 1000:.1f}",
            f"{middle(self.commit_s) * 1000:.1f}" if self.commit_s else "",
            f"{self.files:.1f}",
            str(self.most_files),
            str(self.group_files),
            str(self.metadata_files),
            f"{self.producer_mb:.0f}",
            f"{self.maintain_mb:.0f}",
        )


def middle(values: Sequence[float]) -> float:
    """The median; 0.0 without values."""
    return statistics.median(values) if values else 0.0


def p99(values: Sequence[float]) -> float:
    """The 99th percentile; 0.0 without values."""
    return sorted(values)[min(len(values) - 1, len(values) * 99 // 100)] if values else 0.0


def against(minutes: Sequence[Minute]) -> list[Cells]:
    """The first minutes compared with the last: appends and commits of all of them together, the maximum of the
    other figures."""
    ends = max(1, min(ENDS, len(minutes) // 3))
    first, last = minutes[:ends], minutes[-ends:]

    def change(what: str, unit: str, of: Callable[[Sequence[Minute]], float]) -> Cells:
        began, ended = of(first), of(last)
        texts = (f"{value:.1f} {unit}".strip() for value in (began, ended))
        times = ratio_text(ended / began) if began else ""
        return Cells(("what", "first minutes", "last minutes", "times"), (what, *texts, times))

    def largest(what: str, unit: str, of: Callable[[Minute], float]) -> Cells:
        return change(what, unit, lambda some: max(map(of, some)))

    return [
        change("append, median", "ms", lambda some: middle(_append_ms(some))),
        change("append, p99", "ms", lambda some: p99(_append_ms(some))),
        change("append, CPU", "ms", lambda some: 1000 * statistics.fmean(minute.cpu_s_each for minute in some)),
        change("commit of a group, median", "ms", lambda some: middle(_commit_ms(some))),
        largest("files per partition, average", "", lambda minute: minute.files),
        largest("files per partition, maximum", "", lambda minute: minute.most_files),
        largest("files of the group's partition", "", lambda minute: minute.group_files),
        largest("files of the metadata log", "", lambda minute: minute.metadata_files),
        largest("producer, resident", "MB", lambda minute: minute.producer_mb),
        largest("maintain, resident", "MB", lambda minute: minute.maintain_mb),
    ]


def _append_ms(minutes: Sequence[Minute]) -> list[float]:
    return [seconds * 1000 for minute in minutes for seconds in minute.append_s]


def _commit_ms(minutes: Sequence[Minute]) -> list[float]:
    return [seconds * 1000 for minute in minutes for seconds in minute.commit_s]


# ------------------------------------------------------------------------------------------------ the run


def run(made: BenchCluster, given: argparse.Namespace, maintain: subprocess.Popen[bytes]) -> Iterator[Minute]:
    """Run the benchmark, and yield each minute when it is over."""
    cluster, partitions = made.cluster, given.partitions
    for done in range(partitions * WARM_UP):
        append(cluster, partition=done % partitions)
    began = time.monotonic()
    numbers = range(1, -(-given.seconds // MINUTE_S) + 1)
    sent, next_commit_s = 0, 0.0
    for number in numbers:
        minute, end_s = Minute(number), min(number * MINUTE_S, given.seconds)
        cpu_s = time.process_time()
        while (now_s := time.monotonic() - began) < end_s:
            if given.commit_every and now_s >= next_commit_s:
                minute.commit_s.append(seconds_of(partial(_commit, made, sent)))
                next_commit_s += given.commit_every
            due_s = sent / given.rate
            if due_s > now_s:
                time.sleep(min(due_s, end_s) - now_s)
                continue
            minute.append_s.append(seconds_of(partial(append, cluster, partition=sent % partitions)))
            sent += 1
        minute.cpu_s = time.process_time() - cpu_s
        if maintain.poll() is not None:
            raise AssertionError(f"maintain ended with status {maintain.returncode}")
        _look(made, maintain.pid, minute)
        yield minute
    expected = (partitions * WARM_UP + sent) * RECORDS
    ends = cluster.offsets(TOPIC, "latest").values()
    found = sum(end.offset for end in ends if isinstance(end, FoundOffset))
    if found != expected:
        raise AssertionError(f"{expected:,} records were appended, and the logs hold {found:,}")


def _commit(made: BenchCluster, number: int) -> None:
    made.cluster.groups.commit("bench", {(TOPIC, 0): number}).raise_for_failures()


def _look(made: BenchCluster, maintain: int, minute: Minute) -> None:
    logs = [_names(folder) for folder in made.folder.glob(f"broker-*/*/{TOPIC}-*/*")]
    minute.files, minute.most_files = statistics.fmean(logs), max(logs)
    groups = made.folder.glob(f"broker-*/*/{OFFSETS_TOPIC}-*/*")
    minute.group_files = max(map(_names, groups), default=0)
    minute.metadata_files = max(map(_names, made.folder.glob(f"broker-*/*/{METADATA_TOPIC}")))
    minute.producer_mb, minute.maintain_mb = _resident_mb(os.getpid()), _resident_mb(maintain)


def _names(folder: Path) -> int:
    return sum(1 for _ in os.scandir(folder))


def _resident_mb(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _maintaining(made: BenchCluster, every: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``maintain`` as a user runs it, and interrupt it at the end. Only its last line and its failures are
    printed."""
    file = str(made.folder / "cluster.toml")
    log = made.folder / "maintain.log"
    command = [sys.executable, "-m", "stratalog.jobs.maintain", "--cluster", file, "--every", every]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.terminate()  # SIGTERM, because children of a shell's background process ignore an interrupt
            process.wait()
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            rounds = [line for line in lines if line.startswith("maintain: ")]
            failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "Traceback"))]
            print("\n".join([f"\n{len(rounds)} rounds of maintain; the last one:", *rounds[-1:], *failures[-5:]]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hour", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--every", default="30s")
    parser.add_argument("--commit-every", type=int, default=5)
    parser.add_argument("--file-delete-delay", type=int)
    given = parser.parse_args()
    if min(given.seconds, given.rate, given.partitions) <= 0:
        parser.error("--seconds, --rate and --partitions must be above 0")
    duration(given.every)
    return given


def main() -> int:
    """Run the benchmark and print its results. Returns the exit status; a low ratio is not a failure."""
    given = _arguments()
    minutes: list[Minute] = []
    configs = {} if given.file_delete_delay is None else {"file.delete.delay.ms": str(given.file_delete_delay)}
    with tempfile.TemporaryDirectory(prefix="stratalog-hour-", dir=TMPFS if TMPFS.is_dir() else None) as folder:
        made = Bench(None, bench_options({}, Path(folder))).cluster("hour", brokers=REPLICAS)
        made.cluster.topics.create(
            TOPIC, partitions=given.partitions, replication_factor=REPLICAS, configs=configs
        )
        print(" ".join(f"{heading:>11}" for heading in Minute.headings), flush=True)
        with _maintaining(made, given.every) as maintain:
            for minute in run(made, given, maintain):
                minutes.append(minute)
                print(" ".join(f"{cell:>11}" for cell in minute.cells), flush=True)
        made.driver().verify(deep=True).raise_for_failures()
        made.remove()
    print(f"\n{Minute.note}\n\n{render(against(minutes))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
