"""What the files of voters say: the greatest log of some listings, and copies of it for those that lack it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.metadata.fold import apply
from engine.metadata.records import MetadataRecord
from engine.quorum.batch import Batch, decode_batch
from engine.quorum.checkpoints import copy_checkpoint, read_checkpoint
from engine.quorum.state import LogState, greatest_of
from engine.quorum.voter import VoterListing, position_of
from partitions.errors import (
    CorruptionError,
    InconsistentClusterIdError,
    LogGapError,
    RetriableError,
    SourceChangedError,
    StratalogError,
)
from partitions.lineage import Lineage
from partitions.paths import CheckpointName, DataName

SNAPSHOT_SAVES = 1000
"""A reader that knows a part of the log loads a later snapshot only where that saves it reading so many
batches."""

_DAMAGED = (CorruptionError, InconsistentClusterIdError)

Note = Callable[[str], None]
"""Told what was found to be wrong and could be done without."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The greatest log by its names."""

    last: DataName | CheckpointName
    lineage: Lineage
    live: tuple[DataName, ...]
    """The batches of that lineage that any of the listings shows, ascending."""
    listings: Sequence[VoterListing]


class Contents:
    """Reads the files of one cluster's voters; remembers batches that are not known to be committed yet."""

    def __init__(self, cluster_id: str, note: Note) -> None:
        self._cluster_id = cluster_id
        self._note = note
        self._batches: dict[DataName, Batch] = {}
        self._loaded: dict[CheckpointName, LogState] = {}

    def forget(self) -> None:
        """What was read has been folded into what is known."""
        self._batches.clear()
        self._loaded.clear()

    # ------------------------------------------------------------------------- the greatest log

    def greatest(self, listings: Sequence[VoterListing], known: LogState, hint: LogState) -> LogState:
        """The log with the greatest position among the listings, folded. ``known`` is committed; ``hint`` was
        some log once, and is believed only where the log's lineage agrees.

        Raises: CorruptionError kinds when committed history has changed or cannot be read; SourceChangedError.
        """
        last = greatest_of(listings)
        self._check_kept(known, listings)
        if last is None or position_of(last) <= known.position:
            return known
        found = self._found(last, listings)
        if known.end > 0 and not _lies_on(known, found):
            raise CorruptionError(
                f"the metadata log of cluster {self._cluster_id!r} lacks what was committed: it has another "
                f"history up to offset {known.end} than the one that was read"
            )
        if hint.end > known.end:
            if _lies_on(hint, found) and self._reaches(hint, found):
                known = hint
            else:
                self._note(f"what was remembered of the metadata up to offset {hint.end} is of another history")
        return self._folded(found, known)

    def _check_kept(self, known: LogState, listings: Sequence[VoterListing]) -> None:
        """What was committed is on a majority for ever, as files or under a snapshot."""
        covered = max((listing.snapshot_end for listing in listings), default=0)
        gone = {
            name
            for name in known.files
            if name.base_offset >= covered and not any(name in listing.files for listing in listings)
        }
        if gone or known.start > covered:
            what = min(gone) if gone else CheckpointName(known.start, 0)
            raise CorruptionError(
                f"the metadata log of cluster {self._cluster_id!r} lacks what was committed: "
                f"{what} on {_named(listings)}"
            )

    def _found(self, last: DataName | CheckpointName, listings: Sequence[VoterListing]) -> _Found:
        names = {name for listing in listings for name in listing.files}
        # All batches of an epoch have its lineage, and so has a snapshot that ends with it.
        same = [name for name in names if name.epoch == last.epoch]
        if isinstance(last, DataName) or same:
            lineage = self.batch(max(same), listings).lineage
        else:
            lineage = self._load(last, listings).lineage
        live = sorted(name for name in names if lineage.epoch_at(name.base_offset) == name.epoch)
        return _Found(last, lineage, tuple(live), listings)

    def _reaches(self, hint: LogState, found: _Found) -> bool:
        """Whether the log is at least as long as the hint says."""
        if isinstance(found.last, DataName):
            if found.last.base_offset >= hint.end:
                return True
            return self.batch(found.last, found.listings).next_offset == hint.end
        return found.last.end_offset >= hint.end

    def _folded(self, found: _Found, known: LogState) -> LogState:
        """From what is known, or from the latest snapshot that is whole, whichever needs less reading."""
        later = {
            name
            for listing in found.listings
            for name in listing.checkpoints
            if known.end < name.end_offset and position_of(name) <= position_of(found.last)
        }
        starts: list[CheckpointName | None] = [*sorted(later, key=position_of, reverse=True)]
        saved = sum(1 for n in found.live if later and known.end <= n.base_offset < max(later).end_offset)
        starts.insert(0 if known.end > 0 and saved <= SNAPSHOT_SAVES else len(starts), None)
        failure: StratalogError | None = None
        for start in starts:
            try:
                return self._folded_from(known if start is None else self._load(start, found.listings), found)
            except _DAMAGED as error:
                if failure is None:
                    failure = error
                if start is not None:
                    self._note(f"{error}; the snapshot before it and the log are used")
        assert failure is not None
        raise failure

    def _folded_from(self, base: LogState, found: _Found) -> LogState:
        records: list[MetadataRecord] = []
        files = set(base.files)
        offset, appended_ms = base.end, base.appended_ms
        for name in found.live:
            if name.base_offset < base.end:
                continue
            if name.base_offset != offset:
                raise LogGapError(
                    f"the metadata log has a gap at offset {offset}, before {name}: {_named(found.listings)}"
                )
            batch = self.batch(name, found.listings)
            records += batch.records
            offset, appended_ms = batch.next_offset, batch.appended_ms
            files.add(name)
        if isinstance(found.last, CheckpointName) and offset != found.last.end_offset:
            raise LogGapError(
                f"the metadata log has a gap at offset {offset}, before the end of snapshot {found.last}: "
                f"{_named(found.listings)}"
            )
        image = apply(base.image, base.end, records)
        return LogState(image, found.lineage, found.last.epoch, base.start, frozenset(files), appended_ms)

    # ------------------------------------------------------------------------------------ files

    def batch(self, name: DataName, listings: Iterable[VoterListing]) -> Batch:
        """The batch of a data file. Raises: as ``_fetch``."""
        if name not in self._batches:
            self._batches[name] = self._fetch(name, listings)[1]
        return self._batches[name]

    def _fetch(self, name: DataName, listings: Iterable[VoterListing]) -> tuple[bytes, Batch]:
        """A file from any voter that has it whole.

        Raises: SourceChangedError, StorageError, CorruptionError kinds when none of them has.
        """
        failure: StratalogError | None = None
        for listing in listings:
            if name not in listing.files:
                continue
            try:
                data = listing.voter.read(name)
                return data, decode_batch(self._cluster_id, name, data, f"{listing.voter}: {name}")
            except StratalogError as error:
                failure = error
        raise failure or SourceChangedError(f"{name} is on none of the voters that were listed")

    def _load(self, name: CheckpointName, listings: Iterable[VoterListing]) -> LogState:
        """The log that a snapshot stands for, from any voter that has it whole.

        Raises: RetriableError when one might have it; else CorruptionError kinds, or another cluster's.
        """
        if name in self._loaded:
            return self._loaded[name]
        failure: StratalogError | None = None
        for listing in listings:
            if name not in listing.checkpoints:
                continue
            try:
                state = read_checkpoint(self._cluster_id, listing.voter, name, listing.checkpoints[name])
            except _DAMAGED as error:
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

    def bring_up(self, state: LogState, listing: VoterListing, sources: Iterable[VoterListing]) -> None:
        """Give a voter what it lacks of a log, oldest first: a snapshot where files are not enough, files.

        Raises: RetriableError, CorruptionError kinds; OutcomeUnknownError.
        """
        start = listing.snapshot_end
        if start < state.start:
            start = self._send_snapshot(state, listing, sources)
        for name in sorted(name for name in state.files if name.base_offset >= start):
            if name not in listing.files:
                listing.voter.create(name, self._fetch(name, sources)[0])

    def _send_snapshot(self, state: LogState, listing: VoterListing, sources: Iterable[VoterListing]) -> int:
        failure: StratalogError | None = None
        held = [(name, source) for source in sources for name in source.checkpoints]
        for name, source in sorted(held, key=lambda one: position_of(one[0]), reverse=True):
            if state.start <= name.end_offset and position_of(name) <= state.position:
                try:
                    copy_checkpoint(self._cluster_id, source, name, listing.voter)
                    return name.end_offset
                except _DAMAGED as error:
                    self._note(str(error))
                    failure = error
        raise failure or SourceChangedError(f"no snapshot up to offset {state.start} or more is left to copy")


def _lies_on(state: LogState, found: _Found) -> bool:
    """Whether what the state ends with is of the log's history."""
    return found.lineage.epoch_at(state.end - 1) == state.epoch


def _named(listings: Iterable[VoterListing]) -> str:
    return ", ".join(str(listing.voter) for listing in listings)
