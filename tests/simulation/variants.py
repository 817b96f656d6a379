"""Variants of steps of the protocol, each without one property; ``mutations`` says which sentence requires it.

Nothing here is patched during a run: several drivers are inside a function at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

import stratalog.engine.metadata.fold
import stratalog.engine.records.acknowledge
import stratalog.engine.replication.append
import stratalog.engine.replication.append_file
import stratalog.engine.replication.sync
import stratalog.engine.state.transaction_steps
import stratalog.engine.upkeep.replication.replicate
import stratalog.engine.upkeep.retention.retain
import stratalog.partitions.known_log
import stratalog.partitions.lineage
import stratalog.partitions.listing
import stratalog.partitions.replica
import stratalog.partitions.retention
import stratalog.partitions.transactions
import tests.simulation.content
import tests.simulation.stores
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import LogEnds
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.state_cache import ReadState
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.election_commands import Election, _begin_again
from stratalog.engine.metadata.image import ClusterImage, PartitionImage, PartitionView, TopicImage
from stratalog.engine.metadata.records import PartitionChangeRecord
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.in_sync import Progressed, adding, joined, propose
from stratalog.engine.replication.append import Appended, _commit, _encode
from stratalog.engine.replication.append_file import AppendOptions, ReplayableBatches
from stratalog.engine.replication.log_end import LogEnd, look_at_end
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.engine.replication.sync import Synced, SyncOptions, _done
from stratalog.engine.state.transaction_state import Transaction, TransactionStates
from stratalog.engine.upkeep.maintenance.maintain import _Maintenance
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    OutcomeUnknownError,
    OutOfOrderSequenceNumberError,
    RetriableError,
    SourceChangedError,
    StorageError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.producer_changes import Level, Levels, applied, next_level
from stratalog.partitions.producers import ProducerAppend, ProducerEntry, earlier_attempt
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.runner import Runner
from stratalog.partitions.segments.check import verify_bytes
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.transactions import LogTransactions
from stratalog.tiering.copier import segment_of
from stratalog.tiering.remote_segment import Uploaded
from stratalog.tiering.statistics import statistics_json


def by_the_driver(clock: Clock, _store: object) -> int:
    """The driver's time, whatever the storage reports."""
    return clock.now_ms()


def patched(target: Any, name: str, variant: Any) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(target, name, variant)


def all_of(*patches: Callable[[], AbstractContextManager[object]]) -> Callable[[], AbstractContextManager[object]]:
    @contextmanager
    def applied() -> Iterator[None]:
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return applied


# ------------------------------------------------------------------------------- 1. a listing


_resolve = stratalog.partitions.listing.resolve
RESOLVERS = (stratalog.partitions.listing, stratalog.partitions.known_log, stratalog.engine.replication.sync)


def removable_also_above(log: ReplicaLog, now_ms: int, delay_ms: int, leader_epoch: int) -> list[str]:
    """Without "dead files only below the high watermark"."""
    names = _removable(log, now_ms, delay_ms, leader_epoch)
    return [*names, *(str(file.name) for file in log.dead if str(file.name) not in names)]


_removable = stratalog.partitions.retention.removable


# ------------------------------------------------------------------------------- 2. append


def append_without_looking_again(
    replicas: PartitionReplicas,
    producer: ProducerAppend,
    batches: Any,
    options: AppendOptions,
    attempt: Any,
    clock: Clock,
    copies: Runner,
    end: LogEnd | None = None,
    turn: object = None,
) -> Appended:
    """Steps 1 to 3, without step 4: the creator of the file has appended."""
    source, leader = ReplayableBatches(batches), replicas.leader
    for _ in range(50):
        end, _ = look_at_end(replicas, end, clock, copies)
        earlier = earlier_attempt(end.state.producers, producer, str(replicas))
        if earlier is not None:
            return Appended(earlier.base_offset, earlier.next_offset, duplicate=True, bytes=0)
        name = DataName(end.log_end, None, replicas.epoch)
        staged = leader.store.stage_writer(leader.path(name))
        _encode(staged, replicas, end, producer, source, options, clock)
        if _commit(staged, name, attempt):
            records = sum(batch.num_rows for batch in source)
            return Appended(end.log_end, end.log_end + records, duplicate=False, bytes=staged.size_bytes)
    raise RetriableError("others were faster")


def ends_of_any_view() -> AbstractContextManager[object]:
    """A driver continues from a known end, whatever has changed about the partition since."""

    def known(ends: LogEnds, views: Iterable[PartitionView]) -> dict[int, LogEnd]:
        kept = {view.partition: ends._ends.take(view.key) for view in views}
        return {partition: one[1] for partition, one in kept.items() if one is not None}

    return patched(LogEnds, "of", known)()


def not_there_is_not_written(staged: Any, name: DataName, attempt: Any) -> bool:
    """After an unknown outcome a look: a missing file was not written."""
    try:
        return _commit(staged, name, attempt)
    except OutcomeUnknownError as error:
        try:
            staged._store.stat(staged._name)
        except FileNotFoundError:
            attempt.names.discard(name)
            raise StorageError(f"{name} was not written") from error
        raise


def done_for_good(
    replicas: PartitionReplicas, follower_id: int, options: SyncOptions, before: Listing, log: ReplicaLog
) -> Synced | None:
    """A follower that once lacked nothing always lacks nothing."""
    follower = replicas.replica(follower_id)
    done = _done.get((follower.store, follower.folder))
    return None if done is None else done.synced


def true(*_: object) -> bool:
    return True


def false(*_: object) -> bool:
    return False


_settle = _Maintenance._settle


def settled_by_a_later_look(
    self: _Maintenance, name: str, piece: Sequence[TopicIdPartition], report: Report
) -> None:
    """By the brokers after the step, which may have changed since it looked."""
    self._due.__dict__.pop("looks", None)
    _settle(self, name, piece, report)


def only_the_last_is_known(state: Any, append: ProducerAppend, what: str) -> Any:
    """Every repeated append after another one comes too late."""
    last = state.get(append.producer_id)
    if last is not None and last.epoch == append.epoch and append.sequence < last.sequence:
        raise OutOfOrderSequenceNumberError(what)
    return earlier_attempt(state, append, what)


def nothing_missed(*_: object) -> dict[int, Exception]:
    return {}


def after_append_without_raised_epoch(
    state: Any, append: ProducerAppend, base_offset: int, next_offset: int, now_ms: int, digest: bytes | None
) -> Any:
    """A marker ends the transaction without changing its epoch and sequence."""
    after = _after_append(state, append, base_offset, next_offset, now_ms, digest)
    if append.control is not None:
        last = state.get(append.producer_id)
        sequence = append.sequence if last is None else last.sequence
        ended = after[append.producer_id]
        after[append.producer_id] = msgspec.structs.replace(ended, epoch=ended.epoch - 1, sequence=sequence)
    return after


def earlier_attempt_without_raised_epoch(state: Any, append: ProducerAppend, what: str) -> Any:
    """A marker counts as written if its transaction is not open."""
    if append.control is None:
        return earlier_attempt(state, append, what)
    last = state.get(append.producer_id)
    over = last is not None and last.epoch >= append.epoch - 1 and last.txn_first_offset is None
    return last if over else None


_after_append = stratalog.engine.replication.append_file.after_append


def changes_alone(replica: Replica, log: ReplicaLog, index: int) -> tuple[dict[str, ProducerEntry], Levels]:
    """The producers in the last footer are considered complete."""
    return applied({}, replica.footer(log.chain[index].file).producers), ()


def touched_by_the_last(
    levels: Levels | None, touched: Iterable[str], producers: int, log_end: int
) -> Level | None:
    """The producers of this append only, whatever was changed before it."""
    level = next_level(levels, touched, producers, log_end)
    return level if level is None else Level(level.since, frozenset(touched))


def file_of_any_epoch(replica: Replica, log: ReplicaLog, index: int) -> tuple[dict[str, ProducerEntry], Levels]:
    """The changes are based on the file that ends at their offset, the oldest of these, of any epoch."""
    part = replica.footer(log.chain[index].file).producer_part
    if part.since is not None:
        for file in sorted(log.listing.data, key=lambda file: file.name.epoch):
            if replica.footer(file).next_offset == part.since and file not in [link.file for link in log.chain]:
                return applied(replica.footer(file).producers, part.entries), ()  # type: ignore[arg-type]
    return _producers_after(replica, log, index)


_producers_after = Replica._producers_after


def without_raised_epoch() -> AbstractContextManager[object]:
    @contextmanager
    def applied() -> Iterator[None]:
        module = stratalog.engine.replication.append
        with (
            patch.object(
                stratalog.engine.replication.append_file, "after_append", after_append_without_raised_epoch
            ),
            patch.object(module, "earlier_attempt", earlier_attempt_without_raised_epoch),
            patch.object(tests.simulation.content, "_encoded", {}),
        ):
            yield

    return applied()


def end_without_the_last(*given: Any, partitions: Any = None, **more: Any) -> Transaction | None:
    """The last of its partitions gets no marker."""
    ended = _end(*given, partitions=partitions, **more)
    if ended is None or partitions is None:
        return ended
    return msgspec.structs.replace(ended, partitions=ended.partitions[:-1])


_end = stratalog.engine.state.transaction_steps.end


def open_transactions_hold_nobody_back(log: ReplicaLog, footer_of: Any, start: int = 0) -> LogTransactions:
    """The last stable offset is the high watermark."""
    return replace(_transactions_of(log, footer_of, start), last_stable_offset=log.high_watermark)


_transactions_of = stratalog.partitions.transactions.transactions_of


def counted_on_trust(
    ports: Ports,
    topic: TopicImage,
    partition: int,
    before: ReadState[TransactionStates],
    offset: int,
    appended: Transaction,
) -> ReadState[TransactionStates]:
    """Every decision counts, whatever is between it and the state on which it was based."""
    return ReadState(before.state.apply(offset, [appended]), before.epoch)


# ------------------------------------------------------------------------------- 3. sync


def no_join(follower: Replica, leader: Replica, epoch: int, log: ReplicaLog) -> None:
    """Without "join F to e"."""


class RegisterLater:
    """``.local`` after the copies instead of before the first."""

    def __init__(self) -> None:
        self.due: dict[str, tuple[Replica, str, bytes]] = {}

    def start(
        self, replicas: PartitionReplicas, follower: Replica, mine: ReplicaLog, log: ReplicaLog, options: Any
    ) -> ReplicaLog:
        created: list[tuple[str, bytes]] = []

        class Hold:
            def __getattr__(self, name: str) -> Any:
                return getattr(follower.store, name)

            def create(self, name: str, data: bytes) -> bool:
                created.append((name, data))
                return True

            def list(self, prefix: str, after: str = "", known: Any = None) -> Any:
                listed = [*follower.store.list(prefix, after)]
                return [*listed, *(tests.simulation.stores.StoredObject(n, len(d), 0, "0") for n, d in created)]

        started = _start(replicas, replace(follower, store=Hold()), mine, log, options)  # type: ignore[arg-type]
        for name, data in created:
            self.due[follower.folder] = follower, name, data
        return started

    def copy(self, leader: Replica, follower: Replica, group: Any, copies: Any) -> None:
        _copy(leader, follower, group, copies)
        if follower.folder in self.due:
            replica, name, data = self.due.pop(follower.folder)
            replica.store.create(name, data)


_start = stratalog.engine.replication.sync._start
_copy = stratalog.engine.replication.sync._copy


def register_later() -> AbstractContextManager[object]:
    variant = RegisterLater()
    return all_of(
        patched(stratalog.engine.replication.sync, "_start", variant.start),
        patched(stratalog.engine.replication.sync, "_copy", variant.copy),
    )()


def copy_of_the_name(leader: Replica, follower: Replica, group: Any, copies: Any) -> None:
    """A copy of the current object of the name, if its bytes are those of its writer."""
    for link in group:
        with errors_of(leader):
            try:
                data = leader.store.read(link.file.object.name)
            except FileNotFoundError as error:
                raise SourceChangedError(f"{link.name} is gone") from error
            copied = MemoryStore("memory://copied")
            copied.create(str(link.name), data)
            verify_bytes(copied, DataFile(link.name, copied.stat(str(link.name))))
        follower.store.create(follower.path(link.name), data)


# ------------------------------------------------------------------------------- 4. the ISR


def expand_without_second_sync(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    works: Any,
    states: Mapping[TopicIdPartition, Progressed],
    *_: object,
) -> None:
    """Both commits without a sync between them."""
    newcomers = {
        key: [broker for broker in state.caught_up if broker not in state.replicas.view.isr]
        for key, state in states.items()
        if not state.again
    }
    wanted = [adding(states[key].replicas.view, brokers) for key, brokers in newcomers.items() if brokers]
    added = propose(metadata, storage, states, wanted)
    propose(metadata, storage, states, [joined(states[key].replicas.view, newcomers[key]) for key in added])


def without_but_last(isr: tuple[int, ...], broker: int) -> tuple[int, ...]:
    """A new incarnation leaves every ISR except those in which it is the last member."""
    return tuple(member for member in isr if member != broker) or isr


def nothing(*_: object) -> None:
    """Does nothing."""


def begin_at_own_end(leader: Replica, log: ReplicaLog, epoch: int, tail: RemoteTail) -> Lineage:
    """The epoch begins where the leader's own log ends."""
    return log.lineage.continued_by(epoch, log.log_end)


def begin_again_at_its_log_start(
    image: ClusterImage, present: PartitionImage, election: Election, what: str
) -> PartitionChangeRecord:
    """A lost log begins at its log start, whatever offsets are known."""
    record = _begin_again(image, present, election, what)
    return msgspec.structs.replace(record, log_start_offset=present.log_start_offset)


def begin_again_in_its_folders(
    image: ClusterImage, present: PartitionImage, election: Election, what: str
) -> PartitionChangeRecord:
    """A lost log begins again where late writes of the lost one arrive."""
    record = _begin_again(image, present, election, what)
    return msgspec.structs.replace(record, begins_again=False, unclean=True)


def reused_by_its_name(
    leader: Replica, run: Run, remote: Store, there: StoredObject, compression: str
) -> Uploaded | None:
    """An intact object of that name counts as the upload, whatever its content is."""
    found = verify_bytes(remote, DataFile(run.segment_name, there))
    segment = segment_of(leader, run, found.footer, there.size_bytes)
    return Uploaded(segment, there.modified_ms, statistics_json(found), 0)
