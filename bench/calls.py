"""The number of storage calls of the protocol's operations, compared with the smallest possible number.

The product's own code runs on stores in memory. Its driver has opened the cluster and read the metadata, but knows
no partition yet, like a job that has just started. On a file system, a listing scans a folder at least twice,
because no file system lists a folder atomically; on object stores every call is one request.

Running at several sizes separates the cost of a run from the cost per partition and per file.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bench.bench import TOPIC, Bench, cluster_file, record_batch
from bench.counting import COPY, CREATE, DELETE, KINDS, LIST, READ, STAT, CountingStore
from bench.table import Limit, Line
from stratalog import Cluster, load_cluster_file
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.driver.opening import open_ports
from stratalog.engine.driver.report import Report
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.producers import Acks
from stratalog.partitions.runner import SerialRunner
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.memory import MemoryStore

BROKERS = 3
NOTE = (
    "Storage calls with three replicas, counted in memory. The peer is the minimum that the protocol needs. "
    "bench/calls.py gives the reason for each call and for each excess."
)
RUN, PARTITION, FILE = PER = ("a run", "a partition", "a file")


@dataclass(frozen=True, slots=True)
class Call:
    """The calls of an operation per run, partition or file; ``least`` is the smallest number that would
    suffice.
    """

    per: str
    kind: str
    number: int
    because: str
    least: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """An operation whose calls are counted."""

    what: str
    prepare: Callable[[CountedCluster, int, int], None]
    """Prepares a number of partitions, with a number of files each, for the operation."""
    run: Callable[[Cluster, int], Report]
    """The operation, by a driver, on a number of partitions."""
    calls: tuple[Call, ...]
    per: tuple[str, ...] = (RUN, PARTITION)
    again: bool = False
    """Whether the driver has run the operation once before."""

    def expected(self, per: str) -> Counter[str]:
        """The expected number of calls of each kind for every ``per``."""
        return self._summed(per, lambda call: call.number)

    def least(self, per: str) -> Counter[str]:
        """The smallest possible number of calls of each kind for every ``per``."""
        return self._summed(per, lambda call: call.number if call.least is None else call.least)

    def _summed(self, per: str, number: Callable[[Call], int]) -> Counter[str]:
        total: Counter[str] = Counter()
        for call in self.calls:
            if call.per == per:
                total[call.kind] += number(call)
        return +total

    def counted(self, partitions: int, files: int) -> Counter[str]:
        """The calls of one run."""
        with tempfile.TemporaryDirectory() as folder:
            made = CountedCluster(Path(folder))
            self.prepare(made, partitions, files)
            driver = made.driver()
            if self.again:
                self.run(driver, partitions).raise_for_failures()
            return made.calls_of(lambda: self.run(driver, partitions).raise_for_failures())

    def measured(self) -> dict[str, Counter[str]]:
        """The calls per run, partition and file: the differences between runs of several sizes."""
        one = self.counted(1, 1)
        more_partitions = _difference(self.counted(2, 1), one)
        more_files = _difference(self.counted(1, 2), one) if FILE in self.per else Counter[str]()
        found = {
            RUN: _difference(one, more_partitions),
            PARTITION: _difference(more_partitions, more_files),
            FILE: more_files,
        }
        return {per: found[per] for per in self.per}


class CountedCluster:
    """Three brokers in memory, whose calls are counted during a run."""

    def __init__(self, folder: Path) -> None:
        (folder / "remote").mkdir()
        self._file = cluster_file(folder, "calls", BROKERS, str(folder / "remote"))
        self._roots: dict[str, MemoryStore] = {}
        self._numbers = itertools.count(1)
        self._noted: list[str] | None = None
        self.cluster = with_parts(Cluster, new_id=self._new_id, opener=self._open).format(self._file)

    def driver(self) -> Cluster:
        """A separate driver, which has read the metadata and no partition. The driver serves followers one after
        the other, because in parallel both might read the same footer.
        """
        ports = open_ports(
            load_cluster_file(self._file), clock=SystemClock(), new_id=self._new_id, opener=self._open, key=None
        )
        ports.storage.copies = SerialRunner()
        assert ports.metadata.image().brokers
        return Cluster(ports)

    def append(self, partitions: int, acks: Acks = "all") -> None:
        """Append one file of one record to each partition."""
        append_one(self.cluster, range(partitions), acks).raise_for_failures()

    def calls_of(self, run: Callable[[], object]) -> Counter[str]:
        """The kinds of the calls that ``run`` makes."""
        noted = self._noted = list[str]()
        run()
        self._noted = None
        return Counter(noted)

    def _new_id(self) -> str:
        return f"{next(self._numbers):032x}"  # placement depends on ids, so they are deterministic

    def _open(self, uri: str, options: StoreOptions, clock: Clock) -> Store:
        # The addresses are not those of folders, so the checks of folders (are two files the same, can files be
        # written?) are not made, as for a bucket.
        address = uri if uri.endswith("/remote") else uri.replace("file://", "memory://")
        return CountingStore(self._roots.setdefault(uri, MemoryStore(address, clock)), self._note)

    def _note(self, kind: str, name: str) -> None:
        if self._noted is not None:
            self._noted.append(kind)


def append_one(cluster: Cluster, partitions: Iterable[int], acks: Acks = "all", topic: str = TOPIC) -> Report:
    """Append one file of one record to each of the partitions."""
    record = record_batch(pa.array([b"one"], pa.binary()))
    return cluster.append_batches(topic, {partition: [record] for partition in partitions}, acks=acks)


def transact_one(cluster: Cluster, partitions: Iterable[int]) -> Report:
    """Append like ``append_one``, in a transaction."""
    record = record_batch(pa.array([b"one"], pa.binary()))
    with cluster.transactions.begin("calls") as transaction:
        transaction.append_batches(TOPIC, {partition: [record] for partition in partitions})
    assert transaction.report is not None
    return transaction.report


def _filled(made: CountedCluster, partitions: int, files: int = 1) -> None:
    """Let all replicas hold the same single file, and record this in the metadata."""
    made.cluster.topics.create(TOPIC, partitions=partitions, replication_factor=BROKERS)
    made.append(partitions)
    made.cluster.replicate().raise_for_failures()


def _behind(made: CountedCluster, partitions: int, files: int) -> None:
    """Give the leaders this number of files more than their followers have."""
    _filled(made, partitions)
    for _ in range(files):
        made.append(partitions, acks="leader")


def _one_out(made: CountedCluster, partitions: int, files: int) -> None:
    """Take one follower of every partition out of the ISR, although it lacks nothing."""
    _filled(made, partitions)
    follower = BROKERS
    assert all(view.leader != follower for view in made.cluster.image.views(TOPIC))
    made.cluster.brokers.fence(follower).raise_for_failures()
    made.cluster.brokers.unfence(follower).raise_for_failures()


def _tiered(made: CountedCluster, partitions: int, files: int) -> None:
    """Tier all sealed segments, and store the list of due partitions."""
    made.cluster.topics.create(
        TOPIC,
        partitions=partitions,
        replication_factor=BROKERS,
        configs={"remote.storage.enable": "true", "segment.bytes": "1"},
    )
    made.append(partitions)
    # The first run uploads, the second has nothing to do, and the third deletes an old version of the list.
    for _ in range(3):
        made.cluster.tier().raise_for_failures()


def _transacted(made: CountedCluster, partitions: int, files: int) -> None:
    """Prepare like ``_filled``, with a small ``__transaction_state``."""
    made.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    _filled(made, partitions)


def _difference(more: Counter[str], less: Counter[str]) -> Counter[str]:
    found = Counter({kind: more[kind] - less[kind] for kind in KINDS})
    assert min(found.values()) >= 0
    return +found


def _metadata(because: str) -> tuple[Call, ...]:
    """The calls of a driver that is up to date and reads the metadata."""
    return (
        Call(RUN, LIST, 1, f"the metadata: {because}"),
        Call(RUN, READ, 1, "the root of the voter whose folder was listed: is it still the voter's?"),
    )


_BEGIN = (
    *_metadata("the view to work in"),
    Call(RUN, STAT, BROKERS, "every root is checked: does it exist, and is it the registered one?"),
)
_MEMORY = (Call(RUN, LIST, BROKERS, "the memory of upkeep: has this operation failed before? Nothing is written"),)
_UNCHANGED = _metadata("is the view still current?")
_CLAIM = (
    Call(
        RUN,
        LIST,
        2,
        "a metadata epoch is claimed: the greatest earlier claim (also for a read: is there anything to commit?), "
        "and the log that it continues",
    ),
    Call(RUN, CREATE, 1, "the claim"),
)
_SYNC_LISTS = (
    Call(PARTITION, LIST, BROKERS, "the followers, then the leader, which is therefore behind none of them"),
    Call(PARTITION, STAT, BROKERS, "a root after each listing: the listed root was the registered one"),
    Call(PARTITION, READ, 1, "the leader's .epoch: its lineage"),
    Call(PARTITION, READ, 1, "the footer of the leader's last file: where the log ends"),
)
_WATERMARK = (Call(PARTITION, CREATE, BROKERS, "the high watermark on every replica"),)

_FIRST_LOOK = (
    Call(PARTITION, READ, 1, "the leader's .epoch: its lineage"),
    Call(PARTITION, READ, 1, "the footer of its last file: the producers"),
)
_APPEND = (
    Call(PARTITION, LIST, 1, "the leader: where its log ends"),
    Call(PARTITION, CREATE, 1, "the file on the leader"),
    Call(PARTITION, LIST, 1, "the leader again: the file is in the leader's log"),
    Call(PARTITION, READ, 1, "its footer: it is this append's, not one of that name by a zombie"),
    Call(PARTITION, LIST, 2, "the followers: what they lack"),
    Call(PARTITION, LIST, 1, "the leader after them", least=0),
    Call(PARTITION, STAT, 5, "a root after each of these listings", least=4),
    Call(PARTITION, COPY, 2, "the bytes to each follower, of the object that was listed"),
    Call(PARTITION, CREATE, 2, "the names on each follower"),
    *_WATERMARK,
)

_APPEND_AGAIN = (
    Call(PARTITION, CREATE, 1, "the file on the leader, at the end that is known: the name is free"),
    Call(PARTITION, LIST, 1, "the leader again, after that end: the file is in its log"),
    Call(PARTITION, STAT, 1, "its root after that"),
    Call(
        PARTITION,
        READ,
        1,
        "the object that was listed: its footer (it is this append's), and the bytes for each follower",
    ),
    Call(PARTITION, CREATE, 2, "the file on each follower"),
    Call(PARTITION, STAT, 2, "their roots after that"),
    *_WATERMARK,
)


def _times(number: int, calls: Iterable[Call], per: str, what: str) -> tuple[Call, ...]:
    """The calls of several appends, as a part of another operation."""
    return tuple(
        Call(
            per,
            call.kind,
            number * call.number,
            what + call.because,
            None if call.least is None else number * call.least,
        )
        for call in calls
    )


SCENARIOS = (
    Scenario(
        "append, acks=all",
        _filled,
        lambda cluster, partitions: append_one(cluster, range(partitions)),
        (
            *_BEGIN,
            *_FIRST_LOOK,
            *_APPEND,
            *_UNCHANGED,
        ),
    ),
    Scenario(
        "append again, acks=all",
        _filled,
        lambda cluster, partitions: append_one(cluster, range(partitions)),
        (
            *_BEGIN,
            *_APPEND_AGAIN,
            *_UNCHANGED,
        ),
        again=True,
    ),
    Scenario(
        "transaction",
        _transacted,
        lambda cluster, partitions: transact_one(cluster, range(partitions)),
        (
            *_metadata("begin: who leads the id's partition of __transaction_state?"),
            Call(RUN, LIST, 1, "its leader: has another producer taken over the id?"),
            Call(RUN, STAT, 1, "its root after that"),
            *_times(1, _BEGIN, RUN, "records: "),
            *_times(3, _APPEND_AGAIN, RUN, "the changes of state, partitions, end and completion: "),
            *_times(5, _UNCHANGED, RUN, "partitions, records, end, markers, completion: "),
            *_times(1, _APPEND_AGAIN, PARTITION, "records: "),
            *_times(1, _APPEND_AGAIN, PARTITION, "marker: "),
        ),
        again=True,
    ),
    Scenario("idle sync", _filled, lambda cluster, _: cluster.replicate(), (*_BEGIN, *_SYNC_LISTS, *_MEMORY)),
    Scenario(
        "sync",
        _behind,
        lambda cluster, _: cluster.replicate(),
        (
            *_BEGIN,
            *_SYNC_LISTS[:-1],
            Call(FILE, READ, 1, "its footer on the leader: no file is missing after it"),
            Call(FILE, COPY, 2, "its bytes to each follower"),
            Call(FILE, CREATE, 2, "its name on each follower"),
            *_UNCHANGED,
            *_WATERMARK,
            *_CLAIM,
            Call(RUN, CREATE, 1, "one commit for all partitions: they have twice as many records as were known"),
            Call(RUN, LIST, 1, "the voter after the commit: the commit is in its log"),
            Call(RUN, READ, 3, "the root of the voter after each of these listings"),
            *_MEMORY,
        ),
        PER,
    ),
    Scenario(
        "ISR expansion",
        _one_out,
        lambda cluster, _: cluster.replicate(),
        (
            *_BEGIN,
            *_SYNC_LISTS,
            *_MEMORY,
            *_CLAIM,
            Call(RUN, CREATE, 2, "two commits for all partitions: adding, in the ISR"),
            Call(RUN, LIST, 2, "the voter after each commit: the commit is in its log"),
            Call(RUN, LIST, 2, "the metadata after each commit: the view to continue in", least=0),
            Call(RUN, READ, 6, "the root of the voter after each of these listings", least=4),
            Call(
                PARTITION,
                LIST,
                2,
                "the newcomer and its leader, after the first commit: what was appended before it",
            ),
            Call(PARTITION, STAT, 2, "a root after each of these"),
        ),
    ),
    Scenario(
        "idle tier",
        _tiered,
        lambda cluster, _: cluster.tier(),
        (
            *_metadata("who leads, which topics are tiered"),
            Call(RUN, LIST, BROKERS, "the list of due partitions: its newest version, on each broker with a copy"),
            Call(RUN, READ, BROKERS, "that version"),
            Call(RUN, LIST, 1, "the remote tier: it describes the cluster as it is"),
            Call(RUN, LIST, 1, "the log of the table: how large it is, before delta-rs reads it"),
            Call(
                RUN,
                READ,
                1,
                "the root that holds the list: it is the registered one, and not an empty mount point",
            ),
            Call(RUN, CREATE, BROKERS, "the next version: when everything is due again"),
            Call(RUN, DELETE, BROKERS, "the last version but one"),
            *_MEMORY,
            Call(PARTITION, LIST, 1, "the leader: it looks as it did when nothing was due"),
        ),
    ),
)


def calls(bench: Bench) -> list[Line]:
    """The current calls of every scenario, compared with the smallest possible number."""
    bench.say("calls")
    lines = []
    for scenario in SCENARIOS:
        for per, found in scenario.measured().items():
            least = scenario.least(per)
            lines.append(
                Line(
                    f"calls, {scenario.what}: {per}",
                    _counts_text(found),
                    _counts_text(least),
                    found.total() / least.total(),
                    Limit(1.0, at_most=True),
                    NOTE,
                )
            )
    return lines


def _counts_text(calls: Mapping[str, int]) -> str:
    parts = ", ".join(f"{calls[kind]} {kind}" for kind in KINDS if calls[kind])
    return f"{sum(calls.values())}: {parts}"
