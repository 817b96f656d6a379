"""I1 to I9 of the protocol, checked after every step, for the parts that the step can have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, ReplicaLog, parse, resolve
from stratalog.partitions.paths import BROKER_FILE, EpochName, LocalStartName
from stratalog.partitions.producers import ProducerEntry, decode
from stratalog.partitions.replica import Replica
from stratalog.partitions.root import BrokerFile, root_identity
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject
from tests.simulation.content import Content, content_of, lineage_of, states_after
from tests.simulation.oracle import History, Key, Oracle, Token
from tests.simulation.roots import Root
from tests.simulation.scheduler import Driver, Violation
from tests.simulation.stores import SimStore
from tests.simulation.transacting import TransactionOracle


@dataclass(frozen=True, slots=True)
class ListedReplica:
    """One replica at one moment, as a listing now shows it."""

    log: ReplicaLog
    tokens: tuple[Token | None, ...]
    """The tokens from the local start to the log end; None for an offset without a record."""
    contents: Mapping[DataFile, Content]
    """The contents of the files of the log."""

    def token(self, offset: int) -> Token | None:
        """The token at an offset of the log."""
        return self.tokens[offset - self.log.local_start]


class Invariants:
    """Compares the truth of the brokers with the oracle."""

    def __init__(
        self,
        oracle: Oracle,
        roots: Mapping[int, Root],
        transactions: TransactionOracle,
        intended: Callable[[bytes], bytes],
        min_insync_replicas: Callable[[Key], int],
    ) -> None:
        self.oracle = oracle
        self.intended = intended
        """The original content for read bytes, which a flipped bit may have changed."""
        self.min_insync_replicas = min_insync_replicas
        self.transactions = transactions
        self.roots = roots
        self.states: dict[tuple[int, str], ListedReplica] = {}
        self._image: ClusterImage | None = None
        self._removed: dict[tuple[Key, int, int], bool] = {}
        self._owned: dict[tuple[int, str], Key] = {}
        self._folders: dict[tuple[Key, int], str] = {}
        nobody = Driver("nobody", -1, lambda _: None)
        self._no_stores: dict[int, Store] = {
            broker: SimStore(root, nobody, lambda: 0, lambda *_: None) for broker, root in roots.items()
        }

    # ---------------------------------------------------------------------------- what there is

    def sound(self, broker: int) -> bool:
        """Whether the root of a broker is the registered one."""
        registered = self.oracle.image.brokers.get(broker)
        found = self.roots[broker].get(BROKER_FILE)
        if registered is None or found is None:
            return False
        if registered.root and root_identity(found[0]) != registered.root:
            return False
        return msgspec.json.decode(found[1], type=BrokerFile).directory_id == registered.directory_id

    def partition(self, key: Key) -> PartitionImage | None:
        """The committed partition; None if its topic is deleted."""
        topic = self.oracle.image.topics.get(key[0])
        return None if topic is None else topic.partitions[key[1]]

    @property
    def folders(self) -> Mapping[tuple[Key, int], str]:
        """The folders of all replicas in their current places."""
        if self.oracle.image is not self._image:
            self._take_image(self.oracle.image)
        return self._folders

    def folder(self, broker: int, key: Key) -> str:
        """The folder of a replica in its current place, by the product's own rule."""
        return self.folders[key, broker]

    def state(self, broker: int, folder: str) -> ListedReplica:
        """The current state of a replica. Raises: Violation if its own files contradict each other."""
        if folder in self.roots[broker].changed:  # within a step
            return self._look(broker, folder)
        known = self.states.get((broker, folder))
        if known is None:
            known = self.states[broker, folder] = self._look(broker, folder)
        return known

    def _look(self, broker: int, folder: str) -> ListedReplica:
        root = self.roots[broker]
        entries = root.folders.get(folder, {})
        key = self._owned.get((broker, folder))

        def data(file: DataFile) -> bytes:
            return self.intended(entries[file.object.name][1])

        try:
            generation = 0 if key is None else self.oracle.history(key).generation
            listing = parse(folder, root.of_folder(folder), generation=generation)
            lineage = Lineage()
            if listing.epochs:
                lineage = lineage_of(self.intended(entries[f"{folder}/{EpochName(listing.joined_epoch)}"][1]))
            log = resolve(listing, lineage, lambda file: content_of(data(file)).next_offset)
        except CorruptionError as error:
            raise Violation(f"I7: {root.place}/{folder} contradicts itself: {error}") from error
        tokens: list[Token | None] = []
        contents: dict[DataFile, Content] = {}
        for link in log.chain:
            content = contents[link.file] = content_of(data(link.file))
            part = content.tokens[link.start - content.base_offset : link.end - content.base_offset]
            tokens += part
            tokens += [None] * (link.end - link.start - len(part))
        self._check_producers(root.place, folder, log, data, entries)
        return ListedReplica(log, tuple(tokens), contents)

    def _check_producers(
        self,
        place: str,
        folder: str,
        log: ReplicaLog,
        data: Callable[[DataFile], bytes],
        entries: Mapping[str, tuple[StoredObject, bytes]],
    ) -> None:
        """Check I11: its files have all of the producer state that their writer knew. Only the last append is
        checked, because earlier ones were checked before."""
        appends = [link for link in log.chain if not link.name.merged]
        expected = states_after.get(data(appends[-1].file)) if appends else None
        if expected is None:
            return
        intended, register = self.intended, f"{folder}/{LocalStartName(log.local_start)}"

        class Reading(Replica):
            def footer(self, file: DataFile) -> SegmentFooter:
                return content_of(data(file)).footer

            def producers_at_local_start(self, log: ReplicaLog) -> dict[str, ProducerEntry]:
                return decode(intended(entries[register][1])) if log.local_start else {}

        reading = Reading(0, MemoryStore("memory://none"), "", "", "", 0, 0)
        found = reading.producers_at(log, appends[-1].end)
        if found != expected:
            differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            raise Violation(
                f"I11: {place}/{folder}: {appends[-1].name} does not tell {differing} as it was written"
            )

    # ------------------------------------------------------------------------------ what must be

    def check(self) -> None:
        """Check after a step. Raises: Violation."""
        oracle = self.oracle
        keys = oracle.changed
        if oracle.image is not self._image:
            self._take_image(oracle.image)
        changed: list[tuple[int, str, Key]] = []
        before: dict[tuple[int, str], ListedReplica | None] = {}
        for broker, root in self.roots.items():
            for folder in root.changed:
                before[broker, folder] = self.states.pop((broker, folder), None)
                key = self._owned.get((broker, folder))
                if key is not None:
                    changed.append((broker, folder, key))
            root.changed.clear()
        for broker, folder, key in changed:
            self._check_folder(broker, folder, key, before[broker, folder], keys)
        for broker, folder, key in changed:  # decisions of the same step are known by now
            self._check_transactions(broker, folder, key)
        for _, _, key in changed:
            self._prove(key)
        while keys:
            key = keys.popitem()[0]
            self._check_members(key)
            self._prove(key)

    def _take_image(self, image: ClusterImage) -> None:
        self._image = image
        self._folders = {}
        for topic in image.topics.values():
            for view in image.views(topic.name):
                replicas = PartitionReplicas(view, self._no_stores)
                for broker in view.replicas:
                    self._folders[(view.topic_id, view.partition), broker] = replicas.replica(broker).folder
        self._owned = {(broker, folder): key for (key, broker), folder in self._folders.items()}

    def _check_folder(
        self, broker: int, folder: str, key: Key, before: ListedReplica | None, keys: dict[Key, None]
    ) -> None:
        """Check a changed replica. ``keys`` gets its partition if the other members must be checked."""
        if not self.sound(broker):
            return
        state = self.state(broker, folder)
        log, history = state.log, self.oracle.history(key)
        who = f"on broker {broker} ({self.name(key)})"
        held = {token for token in state.tokens if token is not None}
        if None in state.tokens[: log.high_watermark - log.local_start]:
            gap = log.local_start + state.tokens.index(None)
            raise Violation(f"I5: offset {gap} below the high watermark {log.high_watermark} has no record {who}")
        if history.behind:
            self._commit(history, state, log.high_watermark, who)
            self._end_behind(broker, key, history, log)
            return
        if history.unclean:
            return
        if len(held) + state.tokens.count(None) != len(state.tokens):
            raise Violation(f"I3: a record is twice in the log {who}: {state.tokens}")
        if log.lost_committed:
            raise Violation(
                f"I1: the high watermark reached {log.claimed_high_watermark}, the log ends at {log.log_end} {who}"
            )
        if before is not None and log.high_watermark < before.log.high_watermark:
            raise Violation(
                f"I4: the high watermark went back from {before.log.high_watermark} to {log.high_watermark} {who}"
            )
        self._commit(history, state, log.high_watermark, who)
        if history.generation:
            self._check_removed(key, history, state, before, who)
        if log.high_watermark > history.high:
            self._prove(key)
            if log.high_watermark > history.proven:
                raise Violation(
                    f"I9: the high watermark is {log.high_watermark}, only {history.proven} was ever on all of an "
                    f"ISR with min.insync.replicas members {who}"
                )
            history.high = log.high_watermark
            keys[key] = None
        partition = self.partition(key)
        if partition is not None and broker in partition.isr:
            self._check_member(broker, key, history)

    def _check_removed(
        self, key: Key, history: History, state: ListedReplica, before: ListedReplica | None, who: str
    ) -> None:
        """C2: equal generations hold equal records, and the last one none that its rule removes, or an erasure up
        to it; C4: what was removed from a replica does not come back. Raises: Violation."""
        rule = history.rule
        for link in state.log.chain:
            for offset in range(link.start, link.end) if link.name.generation else ():
                removed = state.token(offset) == b"%d:" % offset
                self.check_same(key, link.name.generation, offset, removed, who)
                if not removed and history.erased.get(offset, link.name.generation + 1) <= link.name.generation:
                    raise Violation(f"C2: {offset} is in {link.name} {who}, and was erased before")
                last = rule is not None and link.name.generation == rule.generation
                if last and rule is not None and not removed and history.is_superseded(offset, rule):
                    raise Violation(f"C2: {offset} is in {link.name} {who}, and {rule} removes it")
        if before is not None:
            for offset in range(
                max(before.log.local_start, state.log.local_start), min(before.log.log_end, state.log.log_end)
            ):
                gap = b"%d:" % offset
                if before.token(offset) == gap != state.token(offset):
                    raise Violation(f"C4: {state.token(offset)!r} at {offset} has come back {who}")

    def check_same(self, key: Key, generation: int, offset: int, removed: bool, who: str) -> None:
        """A file of this generation has, or lacks, the record at an offset. Raises: Violation (C2)."""
        if self._removed.setdefault((key, generation, offset), removed) != removed:
            raise Violation(f"C2: {offset} is removed or not in generation {generation} {who}")

    def _end_behind(self, broker: int, key: Key, history: History, log: ReplicaLog) -> None:
        """The leader continues from the end of the remote log, or has begun again: from here on all invariants
        hold again."""
        partition = self.partition(key)
        if history.begins_again is not None:
            if partition is not None and broker == partition.leader and log.local_start >= history.begins_again:
                history.begin = history.proven = log.local_start
                history.begins_again, history.behind = None, False
        elif partition is not None and broker == partition.leader and partition.remote_epoch:
            joined = log.joined_epoch >= partition.remote_epoch
            history.behind = not (joined and log.log_end >= history.acknowledged)

    def _check_transactions(self, broker: int, folder: str, key: Key) -> None:
        if self.sound(broker) and not self.oracle.history(key).unclean:
            state = self.state(broker, folder)
            self.transactions.check(state.log, state.contents, f"on broker {broker} ({self.name(key)})")

    def _commit(self, history: History, state: ListedReplica, end: int, who: str) -> None:
        start = state.log.local_start
        for offset in range(start, end):
            token = state.tokens[offset - start]
            if token is None:
                raise Violation(f"I5: offset {offset}, which is committed, has no record {who}")
            history.commit(offset, token, who)

    def _check_members(self, key: Key) -> None:
        partition, history = self.partition(key), self.oracle.history(key)
        if partition is None or history.unclean or history.behind:
            return
        for broker in partition.isr:
            if self.sound(broker):
                self._check_member(broker, key, history)

    def _check_member(self, broker: int, key: Key, history: History) -> None:
        """Check that a member of the ISR holds all acknowledged records, and all below any high watermark, and no
        record that was reported as erased (E1)."""
        state = self.state(broker, self.folder(broker, key))
        for offset in history.reported:
            if state.log.local_start <= offset < state.log.log_end and state.token(offset) != b"%d:" % offset:
                raise Violation(
                    f"E1: {state.token(offset)!r} at {offset} was reported as erased, and is on broker {broker} "
                    f"({self.name(key)})"
                )
        who = f"on broker {broker}, in the ISR of {self.name(key)}"
        if max(state.log.log_end, history.begin) < history.acknowledged:
            raise Violation(
                f"I1: the log ends at {state.log.log_end}, {history.acknowledged} is acknowledged {who}"
            )
        if max(state.log.log_end, history.begin) < history.high:
            raise Violation(f"I4: the log ends at {state.log.log_end}, a high watermark is {history.high} {who}")
        self._commit(history, state, min(state.log.log_end, max(history.acknowledged, history.high)), who)

    def _prove(self, key: Key) -> None:
        """I9: the records on the ISR may be committed while it has enough members. A member with lost storage does
        not count, because its earlier content was already seen."""
        partition, history = self.partition(key), self.oracle.history(key)
        if (
            partition is None
            or history.unclean
            or history.behind
            or len(partition.isr) < self.min_insync_replicas(key)
        ):
            return
        sound = filter(self.sound, partition.isr)
        ends = [self.state(broker, self.folder(broker, key)).log.log_end for broker in sound]
        history.proven = max([history.proven, *([min(ends)] if ends else [])])

    def name(self, key: Key) -> str:
        """The readable name of a partition."""
        topic = self.oracle.image.topics.get(key[0])
        return f"{'a deleted topic' if topic is None else topic.name}-{key[1]}"
