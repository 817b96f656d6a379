"""Commits metadata with one driver, compared with plain files, and with many concurrent drivers, on folders and on
S3.

Each driver is a separate process, like a Spark driver, and sees the others only through storage. The peer of a
commit with three voters is the smallest amount of work: a file on each of three roots, written, fsynced and linked
under its name. The peer of several competing drivers is a driver that has to claim for each of its commands: two
drivers take turns.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from bench.bench import Bench
from bench.measuring import in_turn, seconds_of
from bench.table import Limit, Line
from bench.uploading import fresh_server
from stratalog.engine.metadata.records import NoOpRecord
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.batch import encode_batch
from stratalog.engine.quorum.bootstrap import bootstrap, find_log
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.identity import random_id
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.root import format_root
from stratalog.partitions.store import Store, StoreOptions, open_store

VOTERS = 3
DRIVERS = (1, 4, 16)
COMMITS = 100
SECONDS = 5.0
"""The time for which many drivers commit as fast as they can."""
READY_WITHIN_S = 120.0

_CLUSTER = "bench"
_CONFIG = "segment.bytes"

Root = tuple[str, StoreOptions]
"""The root of a voter; each process opens it."""


def quorum(bench: Bench) -> list[Line]:
    """The time per commit of one driver, and the commands per second of several."""
    folders = [bench.folder / "quorum" / str(broker) for broker in range(1, VOTERS + 1)]
    for folder in folders:
        folder.mkdir(parents=True)
    roots = [(str(folder), StoreOptions()) for folder in folders]
    make_quorum(roots)
    lines = [commit_line(roots), *drivers_lines(roots, "")]
    with fresh_server(bench.folder / "quorum-s3") as endpoint:
        options = StoreOptions(endpoint_url=endpoint.url)
        roots = [(f"s3://{endpoint.bucket}/voter-{broker}", options) for broker in range(1, VOTERS + 1)]
        make_quorum(roots)
        return [*lines, *drivers_lines(roots, ", S3")]


def make_quorum(roots: Sequence[Root]) -> None:
    """A metadata log on new roots."""
    stores = _stores(roots)
    voters = [
        Voter(broker, store, format_root(store, _CLUSTER, broker, random_id).directory_id)
        for broker, store in stores.items()
    ]
    bootstrap(_CLUSTER, _log(voters, stores, seed=0), voters, {})


def commit_line(roots: Sequence[Root]) -> Line:
    """One driver that holds its claim, compared with plain files on the same roots."""
    log, stores = _driver(roots, seed=1), _stores(roots)
    data = bytes(2000)
    rounds = iter(range(1_000_000))

    def ours() -> float:
        image = log.read()
        log.claim()
        decisions = [AlterConfigs(None, {_CONFIG: str(2 + next(rounds))}).decide(image) for _ in range(COMMITS)]
        return seconds_of(lambda: [log.commit(decision.records) for decision in decisions])

    def plain() -> float:
        names = [f"plain/{next(rounds)}" for _ in range(COMMITS)]
        return seconds_of(lambda: [store.create(name, data) for name in names for store in stores.values()])

    MetadataClient(log, SystemClock(), print).submit(AlterConfigs(None, {_CONFIG: "1"}))
    ours_s, plain_s = in_turn(ours, plain)
    return Line(
        f"commit, {VOTERS} voters",
        f"{ours_s / COMMITS * 1000:.2f} ms",
        f"{plain_s / COMMITS * 1000:.2f} ms",
        ours_s / plain_s,
        Limit(3, at_most=True),
        "one driver that holds its claim, compared with a file written, fsynced and linked on each of the roots",
    )


def drivers_lines(roots: Sequence[Root], where: str) -> list[Line]:
    """The combined rate of several drivers."""
    lines = []
    claiming = claims_per_second(roots)
    for drivers in DRIVERS:
        counts = commands_of(roots, drivers)
        rate = sum(counts) / SECONDS
        ours = f"{rate:.1f} a second"
        if drivers == 1:
            lines.append(Line(f"commands, 1 driver{where}", ours, "", note="it holds its claim"))
            continue
        note = (
            f"{min(counts)} to {max(counts)} per driver in {SECONDS:.0f} s; the peer is two drivers that take "
            "turns, and claim each time"
        )
        what, peer = f"commands, {drivers} concurrent drivers{where}", f"{claiming:.1f} a second"
        lines.append(Line(what, ours, peer, rate / claiming, Limit(0.5), note))
    return lines


def claims_per_second(roots: Sequence[Root], seconds: float = SECONDS) -> float:
    """Commands of two drivers that take turns."""
    clients = [MetadataClient(_driver(roots, seed), SystemClock(), print) for seed in (1, 2)]
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        clients[done % 2].submit(AlterConfigs(None, {_CONFIG: str(1 + done)}))
        done += 1
    return done / (time.perf_counter() - began)


def commands_of(roots: Sequence[Root], drivers: int, seconds: float = SECONDS) -> list[int]:
    """The number of commands that each driver has acknowledged after that time."""
    spawn = multiprocessing.get_context("spawn")
    together, counts = spawn.Barrier(drivers), spawn.SimpleQueue()
    processes = [
        spawn.Process(target=_drive, args=(roots, seed, together, seconds, counts)) for seed in range(drivers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise AssertionError(f"a driver ended with {process.exitcode}")
    return [counts.get() for _ in processes]


def _drive(roots: Sequence[Root], seed: int, together: Barrier, seconds: float, counts: SimpleQueue[int]) -> None:
    client = MetadataClient(_driver(roots, seed), SystemClock(), print)
    client.image()
    content = BatchRecords.of(DataName(0, None, 1), [NoOpRecord()], 0)
    encode_batch(_CLUSTER, content, Lineage([(1, 0)]))  # imports happen before the clock starts
    together.wait(READY_WITHIN_S)
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        with suppress(RetriableError):
            client.submit(AlterConfigs(None, {_CONFIG: str(1 + seed * 1_000_000 + done)}))
            done += 1
    counts.put(done)


def _driver(roots: Sequence[Root], seed: int) -> MetadataLog:
    stores = _stores(roots)
    return _log(find_log(_CLUSTER, list(stores), stores).voters, stores, seed)


def _log(voters: Sequence[Voter], stores: dict[int, Store], seed: int) -> MetadataLog:
    return MetadataLog(
        _CLUSTER, voters, clock=SystemClock(), rng=random.Random(seed), new_id=random_id, stores=stores
    )


def _stores(roots: Sequence[Root]) -> dict[int, Store]:
    return {broker: open_store(uri, options) for broker, (uri, options) in enumerate(roots, start=1)}
