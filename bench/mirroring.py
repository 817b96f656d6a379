"""A topic of a real Kafka, mirrored here and by Kafka's own MirrorMaker into another Kafka: ``make bench
ONLY=mirror KAFKA=own`` starts one broker as the source and one as MirrorMaker's target.

Speed
    The two mirrors copy the same records, one after the other. The measured time is the time of a complete run,
    until the last record is appended, fsynced and acknowledged. The time of MirrorMaker is extrapolated from the
    second half of its records.

Kills A topic is written by transactions, some of them aborted. ``kill -9`` ends the copy in the middle, and
another process continues it. Then the benchmark counts the records at their offset, at another offset, found
twice, and missing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from itertools import count

from bench import kafka_topics
from bench.bench import TOPIC, Bench, BenchCluster, pairs_of_records
from bench.kafka_server import running_kafka
from bench.kafka_topics import Places
from bench.measuring import Spread, in_turn, seconds_of
from bench.mirror_maker import TASKS, MirrorMaker
from bench.options import OWN_KAFKA
from bench.table import Limit, Line
from stratalog import Cluster
from stratalog.bridges.mirror.compare import records_of
from stratalog.partitions.errors import CorruptionError, UnknownTopicOrPartitionError

AT_LEAST = 3.0
"""The minimum ratio to MirrorMaker's rate."""
KILLED = "killed"
KILLED_PARTITIONS = 4
_TRANSACTION, _TRANSACTIONS = 1000, 400
_SLOW = "4MB"
"""The throttle of the first process, per second; a partition has about 8 MB."""
_QUIET_S = 15.0
"""After this number of seconds without records, no more records are expected."""
_EXACTLY_ONCE = """target.exactly.once.source.support = enabled
dedicated.mode.enable.internal.rest = true
listeners = http://127.0.0.1:0
"""
_SEED = 382


def mirror(bench: Bench) -> list[Line]:
    """Measure speed, offsets, and the state after a kill."""
    if bench.options.kafka != OWN_KAFKA:
        bench.say("mirror: left out; KAFKA=own starts the brokers that it needs")
        return []
    folders = [bench.folder / name for name in ("kafka-source", "kafka-target")]
    for folder in folders:
        folder.mkdir()
    with running_kafka(folders[0]) as source, running_kafka(folders[1]) as target:
        both = _Both(bench, source, target)
        return [*both.speed(), *both.kills()]


@dataclass(frozen=True, slots=True)
class Copy:
    """The source's committed records in a copy."""

    records: int
    kept: int
    """The number of records at the partition and offset of the source."""
    repeated: int
    lost: int
    killed_at: float
    """The fraction that was copied when the first process was killed."""

    def __str__(self) -> str:
        return f"{self.kept:,} at their offset, {self.repeated:,} twice, {self.lost:,} lost"


class _Both:
    def __init__(self, bench: Bench, source: str, target: str) -> None:
        self._bench, self._source, self._target = bench, source, target
        self._numbers = count()
        self._processor_s: tuple[list[float], list[float]] = [], []
        """The processor seconds of our turns, and of MirrorMaker's."""

    def speed(self) -> list[Line]:
        """Records per second, and per second of a core."""
        options = self._bench.options
        self._bench.say(f"mirror: {options.records:,} records into the source")
        kafka_topics.create(self._source, TOPIC, options.partitions)
        kafka_topics.fill(self._source, TOPIC, options.partitions, pairs_of_records(options.records, _SEED))
        elapsed = in_turn(self._ours, self._mirror_maker)
        what = f"mirror, {options.partitions} partitions, {options.records:,} records of 1 KiB, to a folder"
        note = (
            f"MirrorMaker copies into another broker, with its defaults and {TASKS} tasks. Only the second half "
            "of its records is timed."
        )
        lines = [self._rates(what, elapsed, Limit(AT_LEAST), note)]
        used = [Spread(seconds) for seconds in self._processor_s]
        return [*lines, self._rates("    per CPU second of the mirror's own process", used)]

    def _rates(self, what: str, seconds: list[Spread], limit: Limit | None = None, note: str = "") -> Line:
        rates = [Spread(self._bench.options.records / turn for turn in one.turns) for one in seconds]
        ours, theirs = (f"{rate:,.0f} records/s" for rate in rates)
        return Line(what, ours, theirs, rates[0] / rates[1], limit, note)

    def _ours(self) -> float:
        made = self._bench.cluster(f"mirror-{next(self._numbers)}")
        began = time.process_time()
        seconds = seconds_of(
            lambda: made.cluster.mirror(TOPIC, self._source, replication_factor=1).raise_for_failures()
        )
        self._processor_s[0].append(time.process_time() - began)
        held = sum(int(row["log_end"] or 0) for row in made.cluster.describe(TOPIC).rows)
        if held != self._bench.options.records:
            raise CorruptionError(f"{held:,} records are here, {self._bench.options.records:,} there")
        made.remove()
        self._bench.say(f"mirror: ours {seconds:.2f} s, {self._processor_s[0][-1]:.2f} s of a core")
        return seconds

    def _mirror_maker(self) -> float:
        options, maker = self._bench.options, self._maker(TOPIC)
        seconds, processor_s = maker.copy(options.partitions, options.records)
        kafka_topics.delete(self._target, maker.topic)
        self._processor_s[1].append(processor_s)
        self._bench.say(f"mirror: MirrorMaker {seconds:.2f} s, {processor_s:.2f} s of a core")
        return seconds

    def _maker(self, topic: str, more: str = "") -> MirrorMaker:
        alias = f"source{next(self._numbers)}"
        return MirrorMaker(self._bench.folder / alias, self._source, self._target, alias, topic, more)

    def kills(self) -> list[Line]:
        """The state after a kill, here and in MirrorMaker's copy."""
        self._bench.say("mirror: transactions into the source")
        kafka_topics.create(self._source, KILLED, KILLED_PARTITIONS)
        kafka_topics.fill_by_transactions(self._source, KILLED, KILLED_PARTITIONS, _TRANSACTION, _TRANSACTIONS)
        there = kafka_topics.places(self._source, KILLED, KILLED_PARTITIONS)
        made = self._bench.cluster("killed")
        ours = copy_of(there, *self._killed_here(made))
        made.remove()
        lines = []
        for mode, more in (("", ""), (", exactly once", _EXACTLY_ONCE)):
            maker = self._maker(KILLED, more)
            theirs = copy_of(there, *self._killed_maker(maker, len(there)))
            what = f"{len(there):,} records of transactions, with a kill -9 and a restart; MirrorMaker{mode}"
            lines.append(
                Line(
                    what,
                    str(ours),
                    str(theirs),
                    note=(
                        f"stratalog was killed at {ours.killed_at:.0%} of the offsets, MirrorMaker at "
                        f"{theirs.killed_at:.0%}."
                    ),
                )
            )
        return lines

    def _killed_here(self, made: BenchCluster) -> tuple[Places, float]:
        ends = sum(kafka_topics.log_ends(self._source, KILLED, KILLED_PARTITIONS))
        command = [
            sys.executable,
            "-m",
            "stratalog.bridges.jobs.mirror",
            "--cluster",
            str(made.folder / "cluster.toml"),
        ]
        command += ["--from", self._source, KILLED, "--replication-factor", "1"]
        # one piece after the other, so that the kill comes between two pieces
        slow = [*command, "--throttle", _SLOW]
        first = subprocess.Popen(slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with closing(Cluster.open(made.folder / "cluster.toml")) as looking:
            _wait_until_moved(looking, first)
            first.kill()
            first.wait()
            held = _held_here(looking)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return _places_here(looking), held / ends

    def _killed_maker(self, maker: MirrorMaker, records: int) -> tuple[Places, float]:
        maker.start()
        try:
            held = maker.wait_for(KILLED_PARTITIONS, records // 4)
            maker.kill()
            maker.start()
            maker.wait_for(KILLED_PARTITIONS, records)
            ends, since = 0, time.monotonic()
            while time.monotonic() - since < _QUIET_S:
                now = sum(kafka_topics.log_ends(self._target, maker.topic, KILLED_PARTITIONS))
                if now != ends:
                    ends, since = now, time.monotonic()
                time.sleep(0.5)
        finally:
            maker.kill()
        return kafka_topics.places(self._target, maker.topic, KILLED_PARTITIONS), held / records


def _wait_until_moved(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not _held_here(cluster):
        time.sleep(0.005)


def _held_here(cluster: Cluster) -> int:
    try:
        return sum(int(row["log_end"] or 0) for row in cluster.describe(KILLED).rows)
    except UnknownTopicOrPartitionError:
        return 0


def _places_here(cluster: Cluster) -> Places:
    found: Places = defaultdict(list)
    for partition in range(KILLED_PARTITIONS):
        offset = 0
        while True:
            fetched = cluster.fetch(KILLED, partition, offset, isolation="read_committed")
            for record in records_of(fetched.records):
                found[record.key or b""].append((partition, record.offset))
            if fetched.next_offset == offset:
                break
            offset = fetched.next_offset
    return found


def copy_of(there: Places, copied: Places, killed_at: float) -> Copy:
    """Compare the records in the source, ``there``, with the copy."""
    kept = sum(where[0] in copied.get(key, ()) for key, where in there.items())
    repeated = sum(len(places) - 1 for places in copied.values())
    return Copy(len(there), kept, repeated, len(there.keys() - copied.keys()), killed_at)
