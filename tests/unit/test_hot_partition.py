"""One process appends to a partition as fast as it can: no concurrent operation fails, and the files stay few."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bench.bench import TMPFS
from stratalog import Cluster
from stratalog.engine.driver.report import Report
from tests.unit.harness import batch

RECORDS = 20
"""The number of records of an append."""
NAMES = 2
"""The names of an append: its records, and the high watermark."""
SLACK = 3
"""A name stays for this multiple of the delay: it waits for a merge, then for its deletion, then for the next run,
which comes when a quarter of the names is new.
"""
FEW = 500

TOML = '[cluster]\nid = "c"\nvoters = [1]\n' + "".join(
    f'[[brokers]]\nid = {broker}\nlog_dir = "b{broker}"\n' for broker in (1, 2, 3)
)


@dataclass
class Appended:
    """The results of an appending process."""

    appends: int
    seconds: float
    failures: list[str]
    messages: list[str]
    """The log messages of its background merges."""


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def append_until_stopped(file: str, pipe: Connection) -> None:
    """The process: it appends until it receives a message."""
    found = _Said()
    logging.getLogger("stratalog.engine.upkeep").addHandler(found)
    cluster, done, failures = Cluster.open(file), 0, list[str]()
    records, began_s = batch([f"{number}" for number in range(RECORDS)]), time.monotonic()
    while not pipe.poll():
        failures += map(str, cluster.append_batches("t", {0: [records]}).failures)
        done += 1
        if done == 1:
            pipe.send("begun")
    pipe.send(Appended(done, time.monotonic() - began_s, failures, found.lines))


@contextmanager
def appending(file: Path) -> Iterator[Callable[[], Appended]]:
    """A process that appends; reading its results ends it."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=append_until_stopped, args=(str(file), its))
    process.start()

    def end() -> Appended:
        mine.send("end")
        found: Appended = mine.recv()
        process.join()
        return found

    try:
        mine.recv()
        yield end
    finally:
        process.kill()
        process.join()


def operations(cluster: Cluster) -> dict[str, Callable[[], list[str]]]:
    """Concurrent operations; each returns its failures."""

    def of(report: Report) -> list[str]:
        return [*map(str, report.failures)]

    def read() -> list[str]:
        return [] if len([*cluster.plan_read("t", last=100)]) > 0 else ["no plan"]

    def fetch() -> list[str]:
        (end,) = cluster.offsets("t", "latest").values()
        fetched = cluster.fetch("t", 0, max(0, end.offset - RECORDS))
        return [] if fetched.high_watermark >= end.offset else [f"the high watermark went back: {fetched}"]

    return {
        "merge": lambda: of(cluster.merge()),
        "verify": lambda: of(cluster.verify()),
        "maintain": lambda: of(cluster.maintain()),
        "health": lambda: [str(row) for row in cluster.health().rows if row["severity"] == "error"],
        "plan_read": read,
        "fetch": fetch,
        "replicate": lambda: of(cluster.replicate()),
    }


def files(folder: Path) -> int:
    """The maximum number of files in a replica's folder."""
    return max(len([*replica.iterdir()]) for replica in folder.glob("b?/*/t-*/0.*"))


def run(folder: Path, seconds: float, delay_ms: int) -> dict[str, object]:
    """The figures of a run without failures. ``delay_ms``: file.delete.delay.ms."""
    file = folder / "cluster.toml"
    file.write_text(TOML)
    for broker in (1, 2, 3):
        (folder / f"b{broker}").mkdir()
    cluster = Cluster.format(file)
    configs = {"file.delete.delay.ms": str(delay_ms), "retention.ms": "-1"}
    cluster.topics.create("t", partitions=1, replication_factor=3, configs=configs)
    cluster.append_batches("t", {0: [batch(["first"])]}).raise_for_failures()
    done: dict[str, int] = {}
    failed: list[str] = []
    most = 0
    with appending(file) as end:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for name, operation in operations(cluster).items():
                failed += [f"{name}: {each}" for each in operation()]
                done[name] = done.get(name, 0) + 1
                most = max(most, files(folder))
        appended = end()
    assert failed == []
    assert (appended.failures, appended.messages) == ([], [])
    rate = appended.appends / appended.seconds
    assert most <= SLACK * NAMES * rate * delay_ms / 1000 + FEW
    Cluster.open(file).verify(deep=True).raise_for_failures()
    return {"appends": appended.appends, "files, the most": most, **done}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder is in memory if there is such a file system, so that appends are as fast as possible."""
    with tempfile.TemporaryDirectory(prefix="stratalog-hot-", dir=TMPFS if TMPFS.is_dir() else tmp_path) as made:
        yield Path(made)


@pytest.mark.nightly
@pytest.mark.long("starts a process, and appends for four seconds")
def test_nothing_fails_during_appends(folder: Path, record_property: Callable[[str, object], None]) -> None:
    record_property("beside appends", run(folder, 4, 500))


@pytest.mark.nightly
@pytest.mark.long("appends for two minutes")
def test_nothing_fails_during_appends_for_two_minutes(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("beside appends for two minutes", run(folder, 120, 20_000))
