"""The contents of voters: the greatest log of some voters, and copies of that log for the other voters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.records import MetadataRecord
from stratalog.engine.quorum.batch import KIND, Batch, decode_batch
from stratalog.engine.quorum.checkpoints import Loading, copy_checkpoint, read_checkpoint
from stratalog.engine.quorum.damage import DAMAGED
from stratalog.engine.quorum.repeated import BatchRecords, latest_of
from stratalog.engine.quorum.state import LogState, greatest_of
from stratalog.engine.quorum.voter import VoterLook, position_of
from stratalog.partitions.errors import (
    CorruptionError,
    LogGapError,
    RetriableError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import CheckpointName, DataName
from stratalog.partitions.segments.signature import check_signature_of

SNAPSHOT_SAVES = 1000
"""A reader that knows a part of the log loads a later snapshot only if that saves this many batches."""

Note = Callable[[str], None]
"""Receives a message about damage that was worked around."""


@dataclass(frozen=True, slots=True)
class _GreatestLog:
    """The greatest log by its file names."""

    last: DataName | CheckpointName
    lineage: Lineage
    live: tuple[DataName, ...]
    """The batches of that lineage, beyond the known batches, that any of the voters shows; ascending."""
    looks: Sequence[VoterLook]


class Contents:
    """Reads the files of one cluster's voters; caches batches that are not known to be committed yet."""

    def __init__(self, cluster_id: str, note: Note, loading: Loading = nullcontext) -> None:
        self._cluster_id = cluster_id
        self._note = note
        self._loading = loading
        self._batches: dict[DataName, Batch] = {}
        self._repeated: dict[DataName, BatchRecords] = {}
        """Batches that were read from inside later batches. A batch has the same content everywhere (I6)."""
        self._loaded: dict[CheckpointName, LogState] = {}

    def forget(self) -> None:
        """Drop cached batches that are now part of the known log."""
        self._batches.clear()
        self._repeated.clear()
        self._loaded.clear()

    # ------------------------------------------------------------------------- the greatest log

    def greatest(self, looks: Sequence[VoterLook], known: LogState, hint: LogState) -> LogState:
        """The log with the greatest position that any of the listings shows, folded. ``known`` is a committed log.
        ``hint`` is an earlier log, used only if its lineage agrees with the lineage of the result.

        Raises: CorruptionError kinds when committed history has changed or cannot be read; SourceChangedError.
        """
        last = greatest_of(looks)
        self._check_kept(known, looks)
        if last is None or position_of(last) <= known.position:
            return known
        if last in {hint.snapshot, *(one.name for one in hint.latest[-1:])}:
            return hint  # a file of that name is the end of exactly one log
        found = self._found(last, looks, known.end)
        if known.end > 0 and _is_in_history(known, found) is False:
            raise CorruptionError(
                f"the metadata log of cluster {self._cluster_id!r} lacks committed records: "
                f"its history up to offset {known.end} differs from the history that this driver read"
            )
        if hint.end > known.end:
            if _is_in_history(hint, found) and self._reaches(hint, found):
                known = hint
            elif _is_in_history(hint, found) is not None:
                self._note(f"the cache of the metadata up to offset {hint.end} belongs to another history")
        return self._folded(found, known)

    def _check_kept(self, known: LogState, looks: Sequence[VoterLook]) -> None:
        """Check that committed batches stay on a majority, as files or in a snapshot."""
        covered = max((look.snapshot_end for look in looks), default=0)
        missing = known.files.difference(*(look.files for look in looks))
        gone = [name for name in missing if name.base_offset >= covered]
        if gone or known.start > covered:
            what = min(gone) if gone else CheckpointName(known.start, 0)
            raise CorruptionError(
                f"the metadata log of cluster {self._cluster_id!r} lacks committed records: "
                f"{what} on {_named(looks)}"
            )

    def _found(self, last: DataName | CheckpointName, looks: Sequence[VoterLook], known_end: int) -> _GreatestLog:
        names = frozenset[DataName]().union(*(look.files for look in looks))
        # All batches of an epoch have the epoch's lineage, and so does a snapshot that ends with the epoch.
        same = [name for name in names if name.epoch == last.epoch]
        if isinstance(last, DataName) or same:
            lineage = self.batch(max(same), looks).lineage
        else:
            lineage = self._load(last, looks).lineage
        new = [name for name in names if name.base_offset >= known_end]
        live = sorted(name for name in new if lineage.epoch_at(name.base_offset) == name.epoch)
        return _GreatestLog(last, lineage, tuple(live), looks)

    def _reaches(self, hint: LogState, found: _GreatestLog) -> bool:
        """Whether the log is at least as long as the hint."""
        if isinstance(found.last, DataName):
            if found.last.base_offset >= hint.end:
                return True
            return self.batch(found.last, found.looks).next_offset == hint.end
        return found.last.end_offset >= hint.end

    def _folded(self, found: _GreatestLog, known: LogState) -> LogState:
        """The log, folded from the known log, or from the latest intact snapshot, whichever needs less reading."""
        later = {
            name
            for look in found.looks
            for name in look.checkpoints
            if known.end < name.end_offset and position_of(name) <= position_of(found.last)
        }
        starts: list[CheckpointName | None] = [*sorted(later, key=position_of, reverse=True)]
        saved = sum(1 for n in found.live if later and known.end <= n.base_offset < max(later).end_offset)
        starts.insert(0 if known.end > 0 and saved <= SNAPSHOT_SAVES else len(starts), None)
        failure: StratalogError | None = None
        for start in starts:
            try:
                return self._folded_from(known if start is None else self._load(start, found.looks), found)
            except DAMAGED as error:
                if failure is None:
                    failure = error
                if start is not None:
                    self._note(f"{error}; the previous snapshot and the log after it are used")
        assert failure is not None
        raise failure

    def _folded_from(self, base: LogState, found: _GreatestLog) -> LogState:
        records: list[MetadataRecord] = []
        files = set(base.files)
        offset, appended_ms, signed = base.end, base.appended_ms, base.signed
        self._gather(found, base.end)
        for name in found.live:
            if name.base_offset < base.end:
                continue
            if name.base_offset != offset:
                raise LogGapError(
                    f"the metadata log has a gap at offset {offset}, before {name}: {_named(found.looks)}"
                )
            read = self._batches.get(name)
            batch = self._repeated[name] if read is None else read.content
            records += batch.records() if read is None else read.records
            offset, appended_ms = batch.next_offset, batch.appended_ms
            signed = signed or (read is not None and read.signed)
            files.add(name)
        if isinstance(found.last, CheckpointName) and offset != found.last.end_offset:
            raise LogGapError(
                f"the metadata log has a gap at offset {offset}, before the end of snapshot {found.last}: "
                f"{_named(found.looks)}"
            )
        image = apply(base.image, base.end, records)
        last, latest = found.last.epoch, latest_of(self._latest(found), base.start)
        return LogState(image, found.lineage, last, base.start, frozenset(files), appended_ms, signed, latest)

    def _latest(self, found: _GreatestLog) -> tuple[BatchRecords, ...]:
        if not isinstance(found.last, DataName):
            return ()
        batch = self.batch(found.last, found.looks)
        return *batch.repeated, batch.content

    def _gather(self, found: _GreatestLog, start: int) -> None:
        """Read the batches starting at ``start``, the last batch first: the batches that it repeats need no
        request.
        """
        for name in reversed(found.live):
            if name.base_offset >= start and name not in self._repeated:
                self.batch(name, found.looks)

    # ------------------------------------------------------------------------------------ files

    def batch(self, name: DataName, looks: Iterable[VoterLook]) -> Batch:
        """The batch of a data file. Raises: see ``_fetch``."""
        if name not in self._batches:
            batch = self._batches[name] = self._fetch(name, looks)[1]
            self._repeated.update((one.name, one) for one in batch.repeated)
        return self._batches[name]

    def _fetch(self, name: DataName, looks: Iterable[VoterLook]) -> tuple[bytes, Batch]:
        """A file from any voter with an intact copy.

        Raises: SourceChangedError, StorageError, CorruptionError kinds when no voter has an intact copy.
        """
        failure: StratalogError | None = None
        for look in looks:
            if name not in look.files:
                continue
            try:
                data, what = look.voter.read(name), f"{look.voter}: {name}"
                check_signature_of(look.voter.key, KIND, str(name), data, what)
                return data, decode_batch(self._cluster_id, name, data, what)
            except StratalogError as error:
                failure = error
        raise failure or SourceChangedError(f"{name} is on none of the listed voters")

    def _load(self, name: CheckpointName, looks: Iterable[VoterLook]) -> LogState:
        """The log that a snapshot replaces, from any voter with an intact copy.

        Raises: RetriableError when a voter might have the snapshot; otherwise CorruptionError kinds, or
            InconsistentClusterIdError.
        """
        if name in self._loaded:
            return self._loaded[name]
        failure: StratalogError | None = None
        for look in looks:
            if name not in look.checkpoints:
                continue
            try:
                with self._loading():
                    state = read_checkpoint(self._cluster_id, look.voter, name, look.voter.stat(name))
            except DAMAGED as error:
                self._note(str(error))
                failure = failure or error
            except RetriableError as error:
                failure = error
            else:
                self._loaded = {name: state}
                return state
        assert failure is not None, f"{name} is on no voter"
        raise failure

    # ----------------------------------------------------------------------------------- copies

    def bring_up(self, state: LogState, look: VoterLook, sources: Iterable[VoterLook]) -> None:
        """Copy to a voter the parts of a log that it lacks, oldest first: files, and also a snapshot if the files
        are not enough.

        A new batch is not read back. The batch's digest is checked in memory, and the batch's file is durable
        before it gets its name. If the medium damages the file later, a reader notices, and uses another voter's
        copy. (Each copy of a snapshot is read back, because the log below it will be deleted.)

        Raises: RetriableError, CorruptionError kinds; OutcomeUnknownError.
        """
        start = look.snapshot_end
        if start < state.start:
            start = self._send_snapshot(state, look, sources)
        for name in sorted(name for name in state.lacked_by(look) if name.base_offset >= start):
            look.voter.create(name, self._fetch(name, sources)[0])

    def _send_snapshot(self, state: LogState, look: VoterLook, sources: Iterable[VoterLook]) -> int:
        failure: StratalogError | None = None
        held = [(name, source) for source in sources for name in source.checkpoints]
        for name, source in sorted(held, key=lambda one: position_of(one[0]), reverse=True):
            if state.start <= name.end_offset and position_of(name) <= state.position:
                try:
                    listing = source.voter.list()
                    if name in listing.checkpoints:
                        copy_checkpoint(self._cluster_id, listing, name, look.voter)
                        return name.end_offset
                except DAMAGED as error:
                    self._note(str(error))
                    failure = error
        raise failure or SourceChangedError(f"no snapshot up to offset {state.start} or higher is left to copy")


def _is_in_history(state: LogState, found: _GreatestLog) -> bool | None:
    """Whether the end of the state is in the log's history; None when the log's lineage begins after that end."""
    epoch = found.lineage.epoch_at(state.end - 1)
    return None if epoch is None else epoch == state.epoch


def _named(looks: Iterable[VoterLook]) -> str:
    return ", ".join(str(look.voter) for look in looks)
