"""One replica on one root. A listing is followed by a check that the root is the registered root (protocol section
1).
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.cache import BoundedCache, Room
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    SourceChangedError,
    StaleBrokerError,
)
from stratalog.partitions.identity import random_id, same_root
from stratalog.partitions.known_log import KnownLog, known_again, log_again
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog, parse
from stratalog.partitions.paths import DataName, EpochName
from stratalog.partitions.producer_changes import Levels, ProducerPart, applied, levels_after
from stratalog.partitions.producers import ProducerEntry, decode
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.root import read_broker_file, root_identity
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.segments.reader import Segment, end_of_file, read_segment
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.partitions.transactions import FooterOf
from stratalog.partitions.unwritable import UnwritableStorageError

_ATTEMPTS = 5
LINEAGES_BYTES = 64 * 1024 * 1024
"""Memory for cached lineages; a lineage of ten elections takes 2 KB."""

remembered_lineages: BoundedCache[tuple[Store, StoredObject], Lineage] = BoundedCache(LINEAGES_BYTES)
"""Lineages, cached by the listed object, so that a replaced register is read again."""
KNOWN_LOGS_BYTES = 64 * 1024 * 1024
"""Memory for cached logs: about 60,000 files. A larger log is listed from scratch each time."""

known_logs: BoundedCache[tuple[Store, str, int], KnownLog] = BoundedCache(KNOWN_LOGS_BYTES)
"""Logs, by the folder of the replica and the generation for which the folder is listed."""
_DECODED = Room(REGISTER_BYTES)
"""Memory for decoding registers, which takes many times their size."""


_looks = itertools.count(1)
_PROCESS = random_id()
"""Distinguishes processes with the same process id on several machines; a forked child has another process id."""


@dataclass(frozen=True, slots=True)
class LookMark:
    """A moment between two listings of replicas by this process. In another process, no listing is later than the
    mark.
    """

    process: tuple[int, str]
    number: int

    @classmethod
    def now(cls) -> LookMark:
        """The current moment."""
        return cls((os.getpid(), _PROCESS), next(_looks))


P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def errors_of(replica: Replica) -> Iterator[None]:
    """A context that attributes corruption to this replica, unless the error names another replica."""
    try:
        yield
    except CorruptionError as error:
        if error.broker_id is None:
            error.broker_id = replica.broker_id
        raise


@contextmanager
def writes_of(*replicas: Replica) -> Iterator[None]:
    """A context that attributes refused writes to the broker of the replica whose root refused them."""
    try:
        yield
    except UnwritableStorageError as error:
        if error.broker_id is None:
            error.broker_id = next((one.broker_id for one in replicas if error.is_below(one.store.uri)), None)
        raise


def _own(read: Callable[Concatenate[Replica, P], R]) -> Callable[Concatenate[Replica, P], R]:
    """A decorator that attributes corruption found by the method to the replica."""

    @wraps(read)
    def reading(replica: Replica, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with errors_of(replica):
            return read(replica, *args, **kwargs)

    return reading


@dataclass(frozen=True, slots=True)
class EndState:
    """The state at the end of a log, for the next append."""

    producers: dict[str, ProducerEntry]
    last_transactional_offset: int | None
    """See ``SegmentFooter``."""
    levels: Levels | None = None
    """The levels of the last file's state (``producer_changes``); None without a file."""

    def after(self, footer: SegmentFooter) -> EndState:
        """The state after one more file at the end of the log."""
        part = footer.producer_part
        producers = {} if part.since is None else self.producers
        return EndState(
            applied(producers, part.entries), footer.last_transactional_offset, levels_after(self.levels, part)
        )


ANY_GENERATION = (1 << 63) - 1
"""The generation of a replica whose removal rules are unknown: the footer of each file has its rule."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One incarnation of one replica: a folder under the root of a broker.

    Every listing is followed by one ``stat`` of the root's ``broker.json``. This check detects a root that was
    wiped and formatted again, and a root that was restored from an older copy by ``cp``, ``rsync`` or object
    copies, whose history ends too early. The check does not detect changes that do not touch that file: a volume
    or bucket rolled back as a whole, or files removed in place (``rsync --delete``). One drawback: a root that was
    moved to another disk is treated as another incarnation, unless it is registered as a trusted copy. In
    addition, a file system must show the same inodes on all machines and after a remount (NFS does, some FUSE file
    systems do not).
    """

    broker_id: int
    store: Store
    directory_id: str
    topic: str
    topic_id: str
    partition: int
    assignment: int
    root: str = ""
    """The registered identity of the root; empty if unknown, in which case ``broker.json`` is read."""
    incarnation_folder: str = ""
    """The folder of this incarnation below the root; empty: the folder is named by the directory id."""
    generation: int = 0
    """The generation of the partition's last removal rule; 0: none. Files of a later generation are foreign."""

    @property
    def folder(self) -> str:
        """The replica's folder under the root."""
        incarnation_folder = self.incarnation_folder or self.directory_id
        return paths.replica_path(incarnation_folder, self.topic, self.topic_id, self.partition, self.assignment)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker_id}"

    def path(self, name: paths.Name | str) -> str:
        """The name of a file of this replica in its store."""
        return paths.join(self.folder, str(name))

    def list(self, *, fresh: bool = False) -> Listing:
        """The files of the replica. The root is checked afterwards, so the listing belongs to the registered
        incarnation.

        Files of an earlier listing may be assumed to be unchanged (``Store.list``). With ``fresh`` every file is
        queried again (for storage checks).

        Raises: StaleBrokerError when the root is another incarnation, by directory id or identity;
            BrokerUnreachableError without a ``broker.json``; ListingUnstableError; CorruptionError if a folder or
            file is replaced by something else.
        """
        return self._look(fresh).listing

    @_own
    def _look(self, fresh: bool) -> KnownLog:
        number = next(_looks)
        before = known_logs.get((self.store, self.folder, self.generation))
        answer = self.store.list(self.folder, known=None if fresh else () if before is None else before.answer)
        known = known_again(before, answer, self.folder, self.store.uri_of, self.generation)
        self.check_root()
        known = replace(known, looked=number)
        self._remember(known)
        return known

    def _known_since(self, mark: LookMark | None) -> KnownLog | None:
        known = known_logs.get((self.store, self.folder, self.generation))
        if mark is None or known is None or mark.process != (os.getpid(), _PROCESS):
            return None
        return known if known.looked > mark.number else None

    def _remember(self, known: KnownLog) -> None:
        known_logs.put((self.store, self.folder, self.generation), known, known.memory_bytes)

    @_own
    def list_behind(self, last: DataName) -> Listing:
        """The changes since a full listing: files whose names sort after ``last``, and all registers of epochs
        above the epoch of ``last``. The cost does not grow with the log. The root is not checked.

        Raises: see ``list``.
        """
        behind = str(last)
        if behind > str(EpochName(last.epoch + 1)):  # only if the offset is at least 10^10 times the epoch
            behind = str(EpochName(last.epoch))
        listed = self.store.list(self.folder, behind)
        return parse(self.folder, listed, self.store.uri_of, generation=self.generation)

    @_own
    def check_root(self) -> None:
        """Check that the root is still the registered incarnation. Raises: see ``list``."""
        if self.root:
            with suppress(FileNotFoundError):
                if same_root(root_identity(self.store.stat(paths.BROKER_FILE)), self.root):
                    return
        found = read_broker_file(self.store)
        if found is None:
            raise BrokerUnreachableError(
                f"{self}: {self.store.uri} has no broker.json: mount its volume, or, if the data is "
                "lost, rebuild the broker with bootstrap"
            )
        if found.directory_id != self.directory_id:
            raise StaleBrokerError(
                f"{self}: {self.store.uri} has directory id {found.directory_id}, but is registered with "
                f"{self.directory_id}: register the broker first"
            )
        if self.root:
            raise StaleBrokerError(
                f"{self}: {self.store.uri} is not the registered root, although it has the same directory id: an "
                "older copy was restored, or the root was moved; register the broker first"
            )

    @_own
    def log(
        self, footer_of: FooterOf | None = None, *, fresh: bool = False, since: LookMark | None = None
    ) -> ReplicaLog:
        """The current log, from one listing, and reads of content that is not cached. ``footer_of`` reads the
        footer of the last file, which has the log's end, from another source. ``fresh``: see ``list``. Returns the
        same object while nothing changes. ``since``: return the log as this process last saw it, if that was after
        this mark. Use ``since`` only to decide that there is nothing to do.

        Raises: see ``list``; CorruptionError, CorruptSegmentError.
        """
        for _ in range(_ATTEMPTS):
            known = self._known_since(since) or self._look(fresh)
            since = None
            if known.resolved is not None and not fresh:
                return known.resolved
            with suppress(SourceChangedError):  # a file has been deleted since the listing: list again
                log = log_again(
                    known.log,
                    known.listing,
                    self.lineage(known.listing),
                    lambda file: self.end_of_append(file, footer_of),
                )
                self._remember(replace(known, log=log))
                return log
        raise SourceChangedError(f"{self}: files disappear faster than they can be listed; try again")

    @_own
    def lineage(self, listing: Listing, up_to: int | None = None) -> Lineage:
        """The lineage of the greatest epoch that the replica has joined (at most ``up_to``); empty if none."""
        joined = [(name.epoch, stored) for name, stored in listing.epochs if up_to is None or name.epoch <= up_to]
        if not joined:
            return Lineage()
        epoch, register = max(joined, key=lambda each: each[0])
        lineage = _read_lineage(self.store, register)
        if lineage.latest_epoch != epoch:
            raise CorruptionError(
                f"{self.store.uri_of(register.name)} must end with epoch {epoch}, but ends with "
                f"{lineage.latest_epoch}: compare it with the files of the other replicas"
            )
        return lineage

    def end_of_append(self, file: DataFile, footer_of: FooterOf | None = None) -> int:
        """The next offset of an append; see ``end_of_file``."""
        return end_of_file(self.store, file, footer_of or self.footer)

    def producers(self, log: ReplicaLog) -> dict[str, ProducerEntry]:
        """The producer state at the log end."""
        return self.end_state(log).producers

    def end_state(self, log: ReplicaLog) -> EndState:
        """The state for an append at the log end: from the last file, otherwise from the local start. The local
        start does not have the last transactional append, which may be in any remote file below it.
        """
        if log.chain:
            producers, levels = self._producers_after(log, len(log.chain) - 1)
            return EndState(producers, self.footer(log.chain[-1].file).last_transactional_offset, levels)
        return EndState(self.producers_at_local_start(log), log.local_start - 1 if log.local_start else None)

    @_own
    def producers_at(self, log: ReplicaLog, offset: int) -> dict[str, ProducerEntry]:
        """The producer state at an offset: the local start, or the end of a file of the log.

        Raises: CorruptionError for any other offset; see ``footer``.
        """
        for index, link in enumerate(log.chain):
            if link.end == offset:
                return self._producers_after(log, index)[0]
        if offset == log.local_start:
            return self.producers_at_local_start(log)
        raise CorruptionError(f"{self} does not contain the state of the producers at offset {offset}")

    def _producers_after(self, log: ReplicaLog, index: int) -> tuple[dict[str, ProducerEntry], Levels]:
        """The producer state after a file of the log, and its levels: from the footers of three files, or of two
        and the ``.local`` register.
        """
        parts: list[ProducerPart] = []
        state: dict[str, ProducerEntry] = {}
        while True:
            part = self.footer(log.chain[index].file).producer_part
            parts.append(part)
            if part.since is None:
                break
            if part.since <= log.local_start:
                state = self.producers_at_local_start(log)
                break
            # The file that ended at ``since``, or a merged segment that covers it, ends no later than this file.
            index = bisect_left(log.chain, part.since, hi=index, key=lambda link: link.end)
        levels: Levels = ()
        for part in reversed(parts):
            state, levels = applied(state, part.entries), levels_after(levels, part)
        return state, levels

    @_own
    def segment(self, file: DataFile) -> Segment:
        """A data file of the replica, with its footer."""
        return read_segment(self.store, file)

    def footer(self, file: DataFile) -> SegmentFooter:
        """The footer of a data file of the replica."""
        return self.segment(file).footer

    @_own
    def producers_at_local_start(self, log: ReplicaLog) -> dict[str, ProducerEntry]:
        """The producer state in the ``.local`` register of the local start; empty at 0."""
        for name, stored in log.listing.local_starts:
            if name.offset == log.local_start:
                try:
                    return decode(read_bounded(self.store, stored.name, REGISTER_BYTES))
                except FileNotFoundError as error:
                    raise SourceChangedError(f"{self}: {name} was deleted after the listing") from error
                except ValueError as error:
                    raise CorruptionError(
                        f"{self.store.uri_of(stored.name)}: the producer state is malformed"
                    ) from error
        return {}


def _read_lineage(store: Store, register: StoredObject) -> Lineage:
    """The content of an ``.epoch`` file."""
    found = remembered_lineages.get((store, register))
    if found is None:
        what = store.uri_of(register.name)
        try:
            data = read_bounded(store, register.name, REGISTER_BYTES)
        except FileNotFoundError as error:
            raise SourceChangedError(f"{what} has been deleted since it was listed") from error
        with _DECODED.of(len(data)):
            found = Lineage.from_json(data, what)
        remembered_lineages.put((store, register), found, found.memory_bytes)
    return found
