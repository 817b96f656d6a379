"""A cluster on simulated storage: the truth, the oracle, and drivers with the product's own contexts."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import msgspec

from stratalog.engine.admin import topics
from stratalog.engine.brokers import bring_up
from stratalog.engine.config.cluster_file import BrokerEntry, ClusterFile
from stratalog.engine.driver.execution import execution_on
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.tasks import Silent
from stratalog.engine.metadata.commands import Command
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.bootstrap import bootstrap as bootstrap_quorum
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.voter import Voter
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions import paths
from stratalog.partitions.paths import BROKER_FILE, DataName
from stratalog.partitions.probing import SerialProber
from stratalog.partitions.root import BrokerFile
from stratalog.partitions.runner import Outcome, SerialRunner
from stratalog.partitions.store import Store, StoreCounts
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.simulation.both_tiers import BothTiers
from tests.simulation.configuration import Configuration, Shape
from tests.simulation.damage import Copies, Damage
from tests.simulation.faults import Events
from tests.simulation.invariants import Invariants
from tests.simulation.ledger import Ledger
from tests.simulation.oracle import Key, Oracle, WatchedLog
from tests.simulation.published import PublishedTable
from tests.simulation.remote import MemoryTopicTable, Table
from tests.simulation.roots import Root
from tests.simulation.scheduler import Driver, Scheduler, Verdict
from tests.simulation.snapshot_tables import SimulatedSnapshotTable
from tests.simulation.snapshots import check_snapshots
from tests.simulation.stores import Note, SimStore
from tests.simulation.themes import ERASING, PUBLISHED, WITH_SNAPSHOTS
from tests.simulation.transacting import TransactionOracle

CLUSTER = "c"
TOPIC = "t"
START_MS = 1_700_000_000_000

T = TypeVar("T")
R = TypeVar("R")
Answer = TypeVar("Answer")


class Time:
    """The time of all drivers: steps move it, and a sleeping driver moves it to its time of waking."""

    def __init__(self) -> None:
        self.ms = START_MS


class DriverClock:
    """A driver's clock, which may be wrong."""

    def __init__(self, time: Time, driver: Driver, ahead_ms: int = 0) -> None:
        self._time = time
        self._driver = driver
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self._time.ms + self._ahead_ms

    def monotonic_s(self) -> float:
        return self._time.ms / 1000

    def sleep(self, seconds: float) -> None:
        wakes_at = self._driver.sleeps_until_ms = self._time.ms + round(seconds * 1000)
        self._driver.point("sleep", "", "")
        self._time.ms = max(self._time.ms, wakes_at)


class SerialTasks(SerialRunner):
    """Tasks on the driver itself."""

    processes = 1

    def __init__(self) -> None:
        self.counts = StoreCounts()

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = lambda _: 1
    ) -> Iterator[Outcome[T, R]]:
        return super().run(function, items, weigh)


def _unheard(note: str) -> None:
    """Notes of the metadata are ignored here."""


class CoarseClient(MetadataClient):
    """The product's client; the calls of one request to the metadata are one step together."""

    def __init__(self, log: WatchedLog, clock: DriverClock, note: Callable[[str], None], driver: Driver) -> None:
        super().__init__(log, clock, note)
        self._driver = driver

    def image(self) -> ClusterImage:
        self._driver.point("image", "", "")
        self._driver.quiet += 1
        try:
            return super().image()
        finally:
            self._driver.quiet -= 1

    def submit(self, command: Command[Answer], *, dry_run: bool = False) -> Answer:
        self._driver.point("submit", "", type(command).__name__)
        self._driver.quiet += 1
        try:
            return super().submit(command, dry_run=dry_run)
        finally:
            self._driver.quiet -= 1

    def with_log(self, work: Callable[[MetadataLog], T]) -> T:
        self._driver.point("log", "", "")
        self._driver.quiet += 1
        try:
            return super().with_log(work)
        finally:
            self._driver.quiet -= 1


@dataclass(slots=True)
class SimulatedStorage(Storage):
    """The product's storage; its remote tables are in memory."""

    table: Callable[[TopicImage, Store], DeltaTopicTable] | None = None
    dropped: set[str] = field(default_factory=set)
    """See ``SimulatedSnapshotTable``."""

    def remote_table(self, topic: TopicImage) -> DeltaTopicTable:
        assert self.table is not None
        assert self.remote is not None
        return self.table(topic, self.remote)

    def snapshot_table(self, topic: TopicImage) -> SnapshotTable:
        assert isinstance(self.remote, SimStore)
        return SimulatedSnapshotTable(
            self.remote, topic.name, topic.topic_id, self.table_clock, self.rng, self.dropped
        )

    def read_remote_log(self, view: PartitionView) -> Callable[[], RemoteLog]:
        topic = TopicImage(name=view.topic, topic_id=view.topic_id, key_schema=None, value_schema=None)
        return lambda: self.remote_table(topic).load()


class World:
    """One run's cluster."""

    def __init__(self, configuration: Configuration, note: Note, note_event: Callable[[str], None]) -> None:
        self.configuration = configuration
        self.shape = configuration.shape
        self.time = Time()
        self.page = configuration.page
        """The current number of names in a page of a listing."""
        self._note = note
        self.note_event = note_event
        formatted = _formatted(self.shape)
        self.file = formatted.file
        self.topic_id = formatted.topic_id
        self.voters = formatted.voters
        self.roots = {broker: root.copy() for broker, root in formatted.roots.items()}
        self.published = PublishedTable(self) if PUBLISHED.name in configuration.tags else None
        """The checks of the table in which the topic publishes its snapshots."""
        puts = self.published is not None and random.Random(f"puts {configuration.seed}").random() < 0.5
        self.remote = Root("remote", shows_staged=not puts)
        self.tables: defaultdict[str, Table] = defaultdict(Table)
        """The tables of the remote tier, by topic id."""
        self.oracle = formatted.oracle.copy(self.batch)
        self.transactions = TransactionOracle(self.oracle)
        self.damage = Damage()
        self.invariants = Invariants(
            self.oracle,
            self.roots,
            self.transactions,
            self.damage.intended,
            self._min_insync_replicas,
        )
        self.both_tiers = BothTiers(
            self.invariants,
            self.tables,
            self.remote,
            tiered_later=any(one.action == "begin_tiering" for slot in configuration.operations for one in slot),
        )
        self.copies = Copies(self)
        self.abandoned = False
        self.events = Events(self)
        self.scheduler = Scheduler(self.events.apply, self._after_step)
        self.ledger = Ledger(self.oracle, self.topic_id, self.damage)
        self._ids = 0
        self.compacted = "compact" in dict(self.shape.topic_configs).get("cleanup.policy", "")
        """Whether the topic keeps the last record of each key."""
        self.keyed = self.compacted or bool(ERASING & configuration.tags)
        """Whether its records have keys."""
        self.has_snapshots = any(theme.name in configuration.tags for theme in WITH_SNAPSHOTS)

    def _after_step(self) -> None:
        self.time.ms += self.configuration.tick_ms
        self.invariants.check()
        if self.keyed:
            self.both_tiers.check()
        if self.has_snapshots:
            check_snapshots(self)
        if self.published is not None:
            self.published.check()
        for key in self.damage.partitions:
            self.copies.check(key)

    def abandon(self, key: Key) -> None:
        """An operator has to decide about the damage there: no copy of it was ever good, or had to be."""
        self.ledger.count("damaged before it was copied, on a last member")
        self.oracle.history(key).forget()
        self.abandoned = True

    def _min_insync_replicas(self, key: Key) -> int:
        topic = self.oracle.image.topics.get(key[0])
        internal = topic is not None and topic.name in INTERNAL_TOPICS
        return 1 if internal else int(dict(self.shape.topic_configs).get("min.insync.replicas", 1))

    def note(self, driver: Driver, what: str, place: str, name: str, outcome: object) -> None:
        """Called with every call of a store."""
        self._note(driver, what, place, name, outcome)
        if self.published is not None:
            self.published.note(driver, what, name)

    def now_ms(self) -> int:
        """The common time."""
        return self.time.ms

    def send(self, driver: Driver, what: str, root: Root, name: str, effect: Callable[[], object]) -> None:
        """A call of a driver takes effect later, or never. It has reached the storage, so it does not matter that
        no other process does by now.
        """

        def land(call: Driver) -> None:
            refused = call.point(what, root.place, name) is Verdict.REFUSE
            if refused or (root.full and what != "delete"):
                self.note(call, what, root.place, name, "never")
                root.lose(name)
                return
            result = effect()
            self.note(call, what, root.place, name, result)
            self.ledger.count("late effects" if result is not False else "late calls without effect")

        self.scheduler.send(driver, land).object = name

    def batch(self, name: DataName) -> bytes:
        """A batch of the metadata log, from any voter."""
        for broker, directory_id in self.voters.items():
            found = self.roots[broker].get(f"{paths.voter_path(directory_id)}/{name}")
            if found is not None:
                return found[1]
        raise AssertionError(f"{name} is on no voter")

    def ports(self, driver: Driver) -> Ports:
        """A driver's ports, as ``Cluster.open`` would make them."""
        numbers = iter(range(1, 1_000_000))
        self._ids += 1
        prefix = f"{0x10000000 + self._ids:08x}"  # none that the formatted cluster has

        def new_id() -> str:
            return f"{prefix}{next(numbers):024x}"

        def view(root: Root) -> SimStore:
            constant_roots = self.configuration.constant_roots
            return SimStore(root, driver, self.now_ms, self.note, lambda: self.page, constant_roots, self.send)

        stores: dict[int, Store] = {broker: view(root) for broker, root in self.roots.items()}
        ahead_ms = self.configuration.ahead_ms
        clock = DriverClock(
            self.time, driver, ahead_ms[driver.slot % len(ahead_ms)] if ahead_ms and driver.slot >= 0 else 0
        )
        log = WatchedLog(
            CLUSTER,
            [Voter(broker, stores[broker], directory_id) for broker, directory_id in self.voters.items()],
            clock=clock,
            rng=random.Random(f"{self.configuration.seed} {prefix}"),
            new_id=new_id,
        )
        log.oracle = self.oracle

        def send(effect: Callable[[], bool]) -> None:
            self.send(driver, "commit", self.remote, "table", effect)

        def table(topic: TopicImage, remote: Store) -> DeltaTopicTable:
            state = self.tables[topic.topic_id]
            return MemoryTopicTable(remote, topic.name, topic.topic_id, state, driver, self.now_ms, send)

        storage = SimulatedStorage(
            file=self.file,
            stores=stores,
            remote=view(self.remote),
            table_clock=clock,
            new_id=new_id,
            rng=random.Random(f"{self.configuration.seed} {prefix} context"),
            threads=SerialRunner(),
            copies=SerialRunner(),
            prober=SerialProber(),
            table=table,
            dropped=set() if self.published is None else self.published.dropped,
        )
        metadata = (
            MetadataClient(log, clock, _unheard)
            if self.configuration.fine_metadata
            else CoarseClient(log, clock, _unheard, driver)
        )
        return Ports(metadata, *execution_on(storage, SerialTasks(), clock, Silent()))


class Formatted:
    """A cluster of some shape just after it was formatted and its topic was created."""

    def __init__(self, shape: Shape) -> None:
        brokers = tuple(
            BrokerEntry(broker, "abc"[broker % 3], f"sim://{broker}") for broker in range(1, shape.brokers + 1)
        )
        self.file = ClusterFile(
            path="cluster.toml",
            cluster_id=CLUSTER,
            remote="sim://remote",
            voters=tuple(range(1, shape.voters + 1)),
            brokers=brokers,
        )
        self.roots = {entry.broker_id: Root(str(entry.broker_id)) for entry in brokers}
        self.voters: dict[int, str] = {}
        numbers = iter(range(1, 1000))

        def new_id() -> str:
            return f"{shape.placement:08x}{next(numbers):024x}"

        driver = Driver("format", 0, lambda _: None)
        driver.quiet = 1
        clock = DriverClock(Time(), driver)
        stores: dict[int, Store] = {
            broker: SimStore(root, driver, clock.now_ms, lambda *_: None) for broker, root in self.roots.items()
        }
        bring_up.format_roots(self.file, stores, list(stores), new_id)
        for broker in self.file.voters:
            self.voters[broker] = self.directory_of(broker)
        voters = [Voter(broker, stores[broker], directory_id) for broker, directory_id in self.voters.items()]
        self.oracle = Oracle(self._batch)
        log = WatchedLog(CLUSTER, voters, clock=clock, rng=random.Random(0), new_id=new_id)
        log.oracle = self.oracle
        bootstrap_quorum(CLUSTER, log, voters, {})
        storage = Storage(
            file=self.file,
            stores=stores,
            remote=SimStore(Root("remote"), driver, clock.now_ms, lambda *_: None),
            table_clock=clock,
            new_id=new_id,
            rng=random.Random(0),
            threads=SerialRunner(),
            prober=SerialProber(),
        )
        metadata = MetadataClient(log, clock, _unheard)
        ports = Ports(metadata, *execution_on(storage, SerialTasks(), clock, Silent()))
        bring_up.register_brokers(ports.metadata, ports.storage, ports.execution).raise_for_failures()
        topics.alter_configs(*ports.all, None, dict(shape.cluster_configs))
        created = topics.create_topic(
            *ports.for_tasks,
            TOPIC,
            partitions=shape.partitions,
            replication_factor=shape.copies,
            configs=dict(shape.topic_configs),
        )
        self.topic_id = str(created.rows[0]["topic_id"])
        for root in self.roots.values():
            root.changed.clear()

    def directory_of(self, broker: int) -> str:
        """The directory id of a root."""
        found = self.roots[broker].get(BROKER_FILE)
        assert found is not None
        return msgspec.json.decode(found[1], type=BrokerFile).directory_id

    def _batch(self, name: DataName) -> bytes:
        for broker, directory_id in self.voters.items():
            found = self.roots[broker].get(f"{paths.voter_path(directory_id)}/{name}")
            if found is not None:
                return found[1]
        raise AssertionError(name)


@lru_cache(maxsize=512)
def _formatted(shape: Shape) -> Formatted:
    return Formatted(shape)
