"""A quorum on simulated storage: the truth, and processes with the product's own log and client."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, cast

import msgspec
from greenlet import getcurrent

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import MetadataRecord
from stratalog.engine.quorum.bootstrap import bootstrap, find_log
from stratalog.engine.quorum.checkpoints import read_checkpoint
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.electorate import Survey
from stratalog.engine.quorum.log import MetadataLog, Patience
from stratalog.engine.quorum.state import CommittedLog, LogState
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.paths import (
    BROKER_FILE,
    METADATA_TOPIC,
    CheckpointName,
    ClaimName,
    DataName,
    base_name,
    folder_of,
    voter_path,
)
from stratalog.partitions.root import BrokerFile
from stratalog.partitions.store import Store
from tests.quorum.configuration import Configuration
from tests.quorum.faults import Events, directory_in
from tests.quorum.history import CLUSTER, History
from tests.quorum.remembering import parsed_name
from tests.quorum.stores import QuorumStore
from tests.simulation.roots import Root
from tests.simulation.scheduler import Driver, Scheduler, Violation
from tests.simulation.stores import Note, SimStore

READER = -2
"""The slot of a process that may only read, after the faults are over."""
START_MS = 1_700_000_000_000
KEY = ClusterKey(CLUSTER, [b"the key of the simulated cluster"])


class WatchedLog(MetadataLog):
    """The product's log, whose results are compared with the twin's."""

    world: World
    who: str

    def committed_log(self) -> CommittedLog:
        known = self.world.history.end
        log = super().committed_log()
        self.world.believed(log.state, self.who)
        self.world.history.check_read(log.state.image, known)
        return log

    def read(self) -> ClusterImage:
        known = self.world.history.end
        image = super().read()
        self.world.believed(self.last_known, self.who)
        self.world.history.check_read(image, known)
        return image

    def read_at_once(self) -> ClusterImage | None:
        known = self.world.history.end
        image = super().read_at_once()
        if image is not None:
            self.world.believed(self.last_known, self.who)
            self.world.history.check_read(image, known)
        return image

    def _proven(self, survey: Survey) -> LogState:
        state = super()._proven(survey)
        self.world.counts["proofs"] += 1
        return state

    def commit(self, records: Sequence[MetadataRecord]) -> ClusterImage:
        image = super().commit(records)
        self.world.believed(self.last_known, self.who)
        return image


class Lock:
    """A lock for the threads of a process; waiting threads wait at the scheduler."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.held = False

    def __enter__(self) -> None:
        while self.held:
            self._world.wait(lambda: self.held)
        self.held = True

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.held = False


class Client(MetadataClient):
    """The product's client; its threads are greenlets."""

    def __init__(self, log: MetadataLog, process: Process) -> None:
        world = process.world
        super().__init__(log, process.clock, world.heard, world.configuration.most_batches)
        self._commits.turn = cast(Any, Lock(world))


class Clock:
    """The common time; a sleeping process moves it to its time of waking."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.ms

    def monotonic_s(self) -> float:
        return self._world.ms / 1000

    def sleep(self, seconds: float) -> None:
        world, driver = self._world, self._world.current()
        wakes_at = driver.sleeps_until_ms = world.ms + round(seconds * 1000)
        driver.point("sleep", "", "")
        world.ms = max(world.ms, wakes_at)


class Process:
    """One process: its access to the quorum, and its threads."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.configuration.seed} {name}")
        self.attempts = world.configuration.attempts
        self.threads: list[Driver] = []
        self.clock = Clock(world)
        self.stores: dict[int, Store] = {broker: world.view(root) for broker, root in world.roots.items()}
        self._ids = iter(range(1, 1_000_000))
        self._prefix = world.new_number()
        self.start([Voter(*one, world.key) for one in world.voters_at_first(self.stores)], LogState())

    def new_id(self) -> str:
        """An id that no other process creates."""
        return f"{self._prefix:016x}{next(self._ids):016x}"

    def start(self, voters: Sequence[Voter], hint: LogState) -> None:
        """Start like a new process."""
        configuration = self.world.configuration
        log = WatchedLog(
            CLUSTER,
            voters,
            clock=self.clock,
            rng=self.rng,
            new_id=self.new_id,
            patience=Patience(attempts=self.attempts, claimant_attempts=configuration.claimant_attempts),
            stores=self.stores,
            hint=hint,
            note=self.world.heard,
            key=self.world.key,
        )
        log.world, log.who = self.world, self.name
        self.client = Client(log, self)

    def open(self, cached: LogState) -> None:
        """Open like ``Cluster.open``; the result may be cached although no driver has confirmed it.

        Raises: as ``find_log``.
        """
        named = sorted(voter.broker_id for voter in self.world.history.image.voters)
        heard, key = self.world.heard, self.world.key
        found = find_log(CLUSTER, named, self.stores, cached=cached, note=heard, as_logged=True, key=key)
        self.world.remembered.append(found.state)
        self.start(found.voters, found.state)


class World:
    """The quorum of one run."""

    def __init__(self, configuration: Configuration, note: Note, note_event: Callable[[str], None]) -> None:
        formatted = _formatted(configuration.voters, configuration.others, configuration.key)
        self.key = KEY if configuration.key else None
        self.configuration = configuration
        self.ms = START_MS
        self.page = configuration.page
        self.note, self.note_event = note, note_event
        self.roots = {broker: root.copy() for broker, root in formatted.roots.items()}
        self.history = formatted.history.copy()
        self.counts = self.history.counts
        self.events = Events(self)
        self.scheduler = Scheduler(self.events.apply, self._after_step)
        self.processes: list[Process] = []
        self.remembered: list[LogState] = [LogState()]
        """The state that processes have seen, for the caches of later processes."""
        self.claims = 1
        """The greatest claimed epoch."""
        self.majority_was_there = 0
        """The last step at which a majority of the voters was reachable."""
        self.failed_at = -1
        """The last step at which a call failed."""
        self._numbers = 0
        self._formatted = formatted
        self._drivers: dict[object, Driver] = {}
        self._waits: dict[str, Callable[[], bool]] = {}
        self._nobody = Driver("nobody", -1, lambda _: None)
        self._nobody.quiet = 1

    # ------------------------------------------------------------------------------ processes

    def process(self, driver: Driver) -> Process:
        """A new process, whose first thread is ``driver``."""
        made = Process(self, driver.name)
        self.processes.append(made)
        self.enter(driver, made)
        return made

    def enter(self, driver: Driver, process: Process) -> None:
        """Run ``driver`` as a thread of the process."""
        self._drivers[getcurrent()] = driver
        process.threads.append(driver)

    def current(self) -> Driver:
        """The running thread."""
        return self._drivers[getcurrent()]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Let the current thread wait while the condition holds."""
        driver = self.current()
        self._waits[driver.name] = condition
        try:
            while condition():
                driver.point("wait", "", "")
        finally:
            self._waits.pop(driver.name, None)

    def waits(self, driver: Driver) -> bool:
        """Whether a thread can only wait for another one."""
        condition = self._waits.get(driver.name)
        return condition is not None and condition()

    def view(self, root: Root) -> Store:
        """A process's view of a root."""
        configuration = self.configuration
        return QuorumStore(root, self, self.now_ms, self.note, lambda: self.page, configuration.constant_roots)

    def voters_at_first(self, stores: dict[int, Store]) -> list[tuple[int, Store, str]]:
        """The voters that a process knows if it was opened before the run began."""
        return [(broker, stores[broker], directory) for broker, directory in self._formatted.voters.items()]

    def new_number(self) -> int:
        """A number that no other caller gets."""
        self._numbers += 1
        return self._numbers

    def now_ms(self) -> int:
        """The common time."""
        return self.ms

    def heard(self, note: str) -> None:
        """Record damage that a process has found and tolerated."""
        self.counts["notes"] += 1

    def _after_step(self) -> None:
        self.ms += self.configuration.tick_ms
        voters = self.history.image.voters
        there = sum(self.roots[voter.broker_id].reachable for voter in voters)
        if 2 * there > len(voters):
            self.majority_was_there = self.scheduler.step
        for process in self.processes:
            first = process.threads[0]
            if first.dead and not all(thread.done for thread in process.threads):
                for thread in process.threads:
                    thread.kill()

    def may_lack_what_is_damaged(self, began: int) -> bool:
        """Whether a result may lack a file that is damaged somewhere: a call has failed since step ``began``, or
        some driver may not write to a voter that might have had the file intact.
        """
        return bool(self.events.damaged) and (self.failed_at >= began or bool(self.configuration.refused))

    # ------------------------------------------------------------------------ reports of stores

    def failed(self) -> None:
        """Record a failed call."""
        self.failed_at = self.scheduler.step

    def may_write(self, driver: Driver, root: Root) -> bool:
        """Whether the driver has the right to change the root."""
        return driver.slot != READER and (driver.slot, int(root.place)) not in self.configuration.refused

    def send(self, what: str, root: Root, name: str, effect: Callable[[], object]) -> None:
        """Send a call that takes effect later."""

        def land(driver: Driver) -> None:
            self._drivers[getcurrent()] = driver
            driver.point(what, root.place, name)
            self.note(driver, what, root.place, name, effect())
            self.counts["late effects"] += 1

        self.scheduler.spawn(f"late{self.new_number()}", -1, land)

    def intends(self, root: Root, name: str, data: bytes) -> None:
        """Record that a file is about to be created."""
        parsed = parsed_name(base_name(name))
        if isinstance(parsed, DataName):
            self.history.meet(parsed, bytes(data))

    def changed(self, what: str, root: Root, name: str, before: bytes | None) -> None:
        """Check the invariants after a call has changed a root. Raises: Violation."""
        directory, _, rest = name.partition("/")
        if not rest.startswith(METADATA_TOPIC):
            return
        parsed = parsed_name(base_name(name))
        if what == "delete":
            if before is not None:
                self._check_deletion(root, directory, parsed)
        elif isinstance(parsed, ClaimName):
            self.claims = max(self.claims, parsed.epoch)
        elif isinstance(parsed, CheckpointName):
            self.history.check_snapshot(parsed, self._snapshot(root, directory, parsed, name))

    def _snapshot(self, root: Root, directory: str, parsed: CheckpointName, name: str) -> LogState:
        store = SimStore(root, self._nobody, self.now_ms, lambda *_: None)
        stored, _ = root.folders[folder_of(name)][name]
        # The caller only watches; a late write had reached the root before.
        answers, root.reachable = root.reachable, True
        try:
            return read_checkpoint(CLUSTER, Voter(int(root.place), store, directory), parsed, stored)
        except CorruptionError as error:
            raise Violation(f"I6: a damaged snapshot was frozen: {error}") from error
        finally:
            root.reachable = answers

    def _check_deletion(self, root: Root, directory: str, parsed: object) -> None:
        self.counts["files deleted"] += 1
        if directory in self.events.lost:
            return
        after = self.whole_names(int(root.place), directory)
        if self.history.serves(after | {parsed}) and not self.history.serves(after):
            raise Violation(f"I6: voter {root.place} lost {parsed}, and with it the committed log")

    # ------------------------------------------------------------------------------- the truth

    def directory_of(self, broker: int) -> str:
        """The directory id of a broker's root; empty if it has none."""
        return directory_in(self.roots[broker])

    def whole_names(self, broker: int, directory: str) -> Collection[Any]:
        """The intact files of a voter."""
        folder = self.roots[broker].folders.get(voter_path(directory), {})
        damaged = self.events.damaged.get(directory, ())
        return {parsed_name(name) for name in map(base_name, folder) if name not in damaged}

    def believed(self, state: LogState, who: str) -> None:
        """A process considers a log committed. Raises: Violation if the log is not committed, or a majority lacks
        it.
        """
        history = self.history
        known = history.end
        history.believe(state, who)
        self.remembered.append(state)
        if history.end > known:
            voters = history.image.voters
            having = [
                voter
                for voter in voters
                if not self.events.is_sound(voter)
                or history.serves(self.whole_names(voter.broker_id, voter.directory_id))
            ]
            if 2 * len(having) <= len(voters):
                raise Violation(f"I6: {who} takes {history.files[-1]} for committed, which only {having} have")


class _Formatted:
    """A quorum just after its log was created."""

    def __init__(self, voters: int, others: int, key: ClusterKey | None) -> None:
        self.roots = {broker: Root(str(broker)) for broker in range(1, voters + others + 1)}
        self.history = History()
        nobody = Driver("format", 0, lambda _: None)
        nobody.quiet = 1
        stores = {
            broker: SimStore(root, nobody, lambda: START_MS, lambda *_: None)
            for broker, root in self.roots.items()
        }
        for broker, root in self.roots.items():
            file = BrokerFile(cluster_id=CLUSTER, broker_id=broker, directory_id=f"{0xA0000000 + broker:032x}")
            root.create(BROKER_FILE, msgspec.json.encode(file), START_MS)
        self.voters = {broker: directory_in(self.roots[broker]) for broker in range(1, voters + 1)}
        log = MetadataLog(
            CLUSTER,
            [Voter(broker, stores[broker], directory, key) for broker, directory in self.voters.items()],
            clock=_Stopped(),
            rng=random.Random(0),
            new_id=lambda: f"{0xB0000000:032x}",
            key=key,
        )
        bootstrap(CLUSTER, log, log.voters, {})
        for root in self.roots.values():
            for stored in root.listing(""):
                name = parsed_name(base_name(stored.name))
                found = root.get(stored.name)
                if isinstance(name, DataName) and found is not None:
                    self.history.meet(name, found[1])
        self.history.believe(log.last_known, "bootstrap")


class _Stopped:
    def now_ms(self) -> int:
        return START_MS

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


@lru_cache(maxsize=64)
def _formatted(voters: int, others: int, key: bool) -> _Formatted:
    return _Formatted(voters, others, KEY if key else None)
