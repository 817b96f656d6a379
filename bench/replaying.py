"""Replaying many small commits, compared with loading one snapshot of the resulting state (KIP-630, "Motivation").

The commits are files as voters have them, written without waiting for the disk; each moves the log start of one
partition. A driver that opens the cluster without a cache either replays the commits or loads the snapshot.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.large_cluster import CLUSTER, example_records, voter_in
from bench.measuring import in_child, in_turn, seconds_of, timed
from bench.options import size_text
from bench.table import Limit, Line
from stratalog.engine.metadata.records import MetadataRecord, PartitionChangeRecord, TopicRecord, VotersRecord
from stratalog.engine.quorum.batch import encode_batch
from stratalog.engine.quorum.bootstrap import find_log
from stratalog.engine.quorum.checkpoints import write_checkpoint
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.state import LogState
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.local import LocalStore

if TYPE_CHECKING:
    from bench.bench import Bench

PARTITIONS = 10_000
FASTER = 10

_EPOCH = 1
_LINEAGE = Lineage(((_EPOCH, 0),))


@dataclass(frozen=True, slots=True)
class Replaying:
    """The measurements for a number of commits; in seconds and bytes."""

    commits: int
    replay_s: float
    replay_bytes: int
    load_s: float
    load_bytes: int


@dataclass(frozen=True, slots=True)
class Log:
    """A log of one voter, whose first batch created a cluster."""

    folder: Path
    """The folder of the log's files."""
    start: int
    """The offset of the first commit."""
    topic_ids: tuple[str, ...]


def replay(bench: Bench) -> list[Line]:
    commits = bench.options.commits
    folder = bench.folder / "replay"
    bench.say(f"making {commits:,} commits")
    log = begin_log(folder)
    processes = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        shares = [(log, range(one, commits, processes)) for one in range(processes)]
        pool.starmap(write_commits, shares, chunksize=1)
    bench.say(f"replaying {commits:,} commits")
    return [replay_line(in_child(measure_replay, folder, log, commits))]


def begin_log(folder: Path) -> Log:
    """The log in ``folder``, without commits."""
    voter = voter_in(folder / "log")
    first: list[MetadataRecord] = [
        VotersRecord(cluster_id=CLUSTER, voters=(voter.id,)),
        *example_records(PARTITIONS),
    ]
    topic_ids = tuple(record.topic_id for record in first if isinstance(record, TopicRecord))
    log = Log(folder / "log" / voter.folder, len(first), topic_ids)
    log.folder.mkdir(parents=True)
    _write(log, 0, first)
    return log


def write_commits(log: Log, numbers: range) -> None:
    """The commits of these numbers, of one record each."""
    for number in numbers:
        topic_id = log.topic_ids[number % len(log.topic_ids)]
        record = PartitionChangeRecord(topic_id=topic_id, partition=0, log_start_offset=number + 1)
        _write(log, log.start + number, [record])


def _write(log: Log, offset: int, records: list[MetadataRecord]) -> None:
    name = DataName(offset, None, _EPOCH)
    (log.folder / str(name)).write_bytes(encode_batch(CLUSTER, BatchRecords.of(name, records, offset), _LINEAGE))


def measure_replay(folder: Path, log: Log, commits: int) -> Replaying:
    """Replay once, which takes long enough to be measured; load a snapshot of the same state in turns."""
    replay_s, replayed = timed(lambda: _found(folder / "log"))
    if replayed.end != log.start + commits:
        raise AssertionError(f"{commits} commits were replayed up to offset {replayed.end}")
    voter = voter_in(folder / "snapshot")
    write_checkpoint(CLUSTER, voter, replayed, SystemClock())
    if _found(folder / "snapshot").image != replayed.image:
        raise AssertionError("the snapshot contains another state")
    [load_s] = in_turn(lambda: seconds_of(lambda: _found(folder / "snapshot")))
    [stored] = voter.list().checkpoints.values()
    replay_bytes = sum(file.stat().st_size for file in log.folder.iterdir())
    return Replaying(commits, replay_s, replay_bytes, load_s, stored.size_bytes)


def _found(root: Path) -> LogState:
    return find_log(CLUSTER, [1], {1: LocalStore(str(root))}, as_logged=True).state


def replay_line(one: Replaying) -> Line:
    return Line(
        f"load a snapshot; replay {one.commits:,} commits",
        f"{one.load_s:.3f} s, {size_text(one.load_bytes)}",
        f"{one.replay_s:.1f} s, {size_text(one.replay_bytes)}",
        one.replay_s / one.load_s,
        Limit(FASTER),
        "Both build the same state in a driver that remembers nothing, from a voter's files on this disk.",
    )
