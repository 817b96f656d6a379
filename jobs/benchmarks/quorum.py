"""Commits of metadata: one driver against plain files, and many drivers at once.

Drivers are processes of their own, as Spark drivers are; they know of each other only what storage tells. The peer
of a commit with three voters is the least that could do the same: a file on each of three roots, written,
fsynced and linked under its name.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Sequence
from pathlib import Path

from engine.metadata.topic_commands import AlterConfigs
from engine.quorum.bootstrap import bootstrap, find_log
from engine.quorum.client import MetadataClient
from engine.quorum.log import MetadataLog
from engine.quorum.voter import Voter
from jobs.benchmarks.bench import Bench
from jobs.benchmarks.measuring import in_turn, seconds_of
from jobs.benchmarks.table import Limit, Line
from partitions.clock import SystemClock
from partitions.errors import RetriableError
from partitions.identity import random_id
from partitions.replica import format_root
from partitions.store import Store
from partitions.store.local import LocalStore

VOTERS = 3
DRIVERS = (1, 4, 16)
COMMITS = 100
SECONDS = 5.0
"""So long many drivers commit as fast as they can."""

_CLUSTER = "bench"
_CONFIG = "segment.bytes"


def quorum(bench: Bench) -> list[Line]:
    """Time per commit of one driver, and commits per second of several."""
    folder = bench.folder / "quorum"
    roots = make_quorum(folder)
    lines = [commit_line(roots)]
    for drivers in DRIVERS:
        lines.append(drivers_line(drivers, commits_per_second(folder, drivers)))
    return lines


def make_quorum(folder: Path) -> dict[int, Store]:
    """A metadata log on three new roots."""
    roots: dict[int, Store] = {}
    for broker in range(1, VOTERS + 1):
        (folder / str(broker)).mkdir(parents=True)
        roots[broker] = LocalStore(str(folder / str(broker)))
    voters = [
        Voter(broker, root, format_root(root, _CLUSTER, broker, random_id).directory_id)
        for broker, root in roots.items()
    ]
    bootstrap(_CLUSTER, _log(voters, roots, seed=0), voters, {})
    return roots


def _log(voters: Sequence[Voter], roots: dict[int, Store], seed: int) -> MetadataLog:
    return MetadataLog(
        _CLUSTER, voters, clock=SystemClock(), rng=random.Random(seed), new_id=random_id, stores=roots
    )


def _client(roots: dict[int, Store], seed: int) -> MetadataClient:
    return MetadataClient(_log(find_log(_CLUSTER, list(roots), roots).voters, roots, seed))


def commit_line(roots: dict[int, Store]) -> Line:
    """One driver that holds its claim, against plain files on the same roots."""
    client = _client(roots, seed=1)
    log = _log(find_log(_CLUSTER, list(roots), roots).voters, roots, seed=2)
    image = log.read()
    data = bytes(2000)
    rounds = iter(range(1_000_000))

    def ours() -> float:
        log.read()
        log.claim()
        decisions = [AlterConfigs(None, {_CONFIG: str(1 + next(rounds))}).decide(image) for _ in range(COMMITS)]
        return seconds_of(lambda: [log.commit(decision.records) for decision in decisions])

    def plain() -> float:
        names = [f"plain/{next(rounds)}" for _ in range(COMMITS)]
        return seconds_of(lambda: [root.create(name, data) for name in names for root in roots.values()])

    client.submit(AlterConfigs(None, {_CONFIG: "1"}))
    ours_s, plain_s = in_turn(ours, plain)
    return Line(
        f"commit, {VOTERS} voters",
        f"{ours_s / COMMITS * 1000:.2f} ms",
        f"{plain_s / COMMITS * 1000:.2f} ms",
        ours_s / plain_s,
        Limit(3, at_most=True),
        "one driver that holds its claim, against a file written, fsynced and linked on each of the roots",
    )


def drivers_line(drivers: int, rate: float) -> Line:
    """What so many drivers commit together."""
    plural = "driver" if drivers == 1 else "drivers"
    return Line(
        f"commands, {drivers} {plural} at once", f"{rate:.1f} a second", "", note="each in its own process"
    )


def commits_per_second(folder: Path, drivers: int, seconds: float = SECONDS) -> float:
    """Commands that so many drivers have acknowledged, by the second."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(drivers) as pool:
        pool.map(_ready, range(drivers), chunksize=1)
        began = time.time() + 1.0  # noqa: TID251 - processes begin together
        counts = pool.starmap(
            _drive, [(str(folder), seed, began, seconds) for seed in range(drivers)], chunksize=1
        )
    return sum(counts) / seconds


def _ready(_: int) -> None:
    """The process has started and imported what it needs."""


def _drive(folder: str, seed: int, began: float, seconds: float) -> int:
    roots: dict[int, Store] = {n: LocalStore(str(Path(folder) / str(n))) for n in range(1, VOTERS + 1)}
    client = _client(roots, seed)
    time.sleep(max(0.0, began - time.time()))  # noqa: TID251 - processes begin together
    done = 0
    while time.time() < began + seconds:  # noqa: TID251 - processes end together
        try:
            client.submit(AlterConfigs(None, {_CONFIG: str(1 + seed * 1_000_000 + done)}))
            done += 1
        except RetriableError:
            continue
    return done
