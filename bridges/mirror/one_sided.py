"""Finds the records of a compared partition that only one side has because a removal rule has removed them from
the other side.

A rule removes a record without a key, a tombstone that is old enough, and a record whose key has a later record.
A rule does not explain any other record that only one side has, for example the last record of a key whose
tombstone the source deleted before the mirror copied it. A rule here considers only records below its bound, so a
later record at or above the bound does not explain a record that is missing here. The bound of the source is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

import numpy as np
import pyarrow as pa

from stratalog.bridges.mirror.rows import offsets_of
from stratalog.partitions.columns import booleans, integers, valid_of
from stratalog.partitions.errors import StorageError
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.superseded import Superseded

MEMORY_BYTES = 128 * 1024 * 1024
"""The memory of a comparison for keys; keys beyond it go to files."""

Sides = tuple[pa.RecordBatch, pa.RecordBatch]
"""The records of the source and of the log here between the same offsets."""


@dataclass(slots=True)
class OneSided:
    """The records on one side only, eight bytes for each."""

    there_compacts: bool
    """Whether the source compacts, so that it may lack records that are here."""
    rule: Rule | None
    """The last rule of the log here; None: nothing was removed here."""
    only_there: list[np.ndarray] = field(default_factory=list)
    only_here: list[np.ndarray] = field(default_factory=list)
    """Offsets, ascending."""

    @property
    def possible(self) -> bool:
        """Whether any side removes records by a rule."""
        return self.there_compacts or self.rule is not None

    @property
    def found(self) -> bool:
        """Whether a side lacks a record."""
        return bool(self.only_there or self.only_here)

    def explained(
        self, start: int, end: int, sides: Iterable[Sides], later: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, str | None]]:
        """The offsets on one side only, and how each differs; None if a rule explains it. ``sides`` are all
        records in ``[start, end)``; ``later`` are records of the source starting at ``end``, which are read after
        ``sides``.

        Raises: StorageError when the folder for temporary files cannot be written.
        """
        bound = 0 if self.rule is None else self.rule.bound
        with (
            Superseded(start, Rule(1, end + 1, end + 1), MEMORY_BYTES) as marks,
            TemporaryDirectory() as folder,
            _KeptKeys(Path(folder)) as below,
        ):
            marks.find(self._keys(end, sides, later, below))
            for offset, explained in _explained(self.only_here, marks, end if self.there_compacts else 0):
                yield offset, _how("here", "no later record has its key", explained)
            if self.only_there:
                unexplained = (
                    f"no later record below offset {bound}, up to which this log is compacted, has its key"
                )
                with Superseded(start, Rule(1, min(bound, end + 1), end + 1), MEMORY_BYTES) as compacted:
                    compacted.find(below.read())
                    for offset, explained in _explained(self.only_there, compacted, bound):
                        yield offset, _how("in the source", unexplained, explained)

    def _keys(
        self, end: int, sides: Iterable[Sides], later: Iterable[pa.RecordBatch], below: _KeptKeys
    ) -> Iterator[pa.RecordBatch]:
        """The keys of both sides, in the form that ``Superseded.find`` accepts. ``below`` keeps the keys below the
        bound of the rule here.
        """
        bound = 0 if self.rule is None else self.rule.bound
        for there, here in sides:
            offsets, others = offsets_of(there), offsets_of(here)
            alone, other_alone = ~np.isin(offsets, others), ~np.isin(others, offsets)
            if alone.any():
                self.only_there.append(offsets[alone])
            if other_alone.any():
                self.only_here.append(others[other_alone])
            before = 0 if self.rule is None else self.rule.tombstones_before
            for keys in (_marked(here, other_alone), _marked(there, alone & (offsets < before))):
                below.add(keys.filter(booleans(offsets_of(keys) < bound)))
                yield keys
        if self.found:
            for records in later:
                keys = _columns(records.column("key"), np.full(records.num_rows, end), None)
                below.add(keys.filter(booleans(offsets_of(records) < bound)))
                yield keys


class _KeptKeys:
    """Batches in a file, in order, because the keys may exceed the memory."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "keys"
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def __enter__(self) -> _KeptKeys:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch. Raises: StorageError."""
        if not batch.num_rows:
            return
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise StorageError(
                f"{self._file.parent}: the keys of a comparison cannot be written to this folder for temporary "
                f"files ({error}); free space there, or set TMPDIR to another folder"
            ) from error

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches; after this nothing may be added."""
        self._close()
        if self._writer is not None:
            with pa.OSFile(str(self._file)) as source, pa.ipc.open_stream(source) as reader:
                yield from reader


def _explained(offsets: Iterable[np.ndarray], marks: Superseded, bound: int) -> Iterator[tuple[int, bool | None]]:
    """The offsets. The bool says whether a rule explains that a side lacks the offset; None if no rule covers the
    offset, because it is not below ``bound``.
    """
    for some in offsets:
        below = some[some < bound]
        if len(below):
            low = int(below[0])
            removed = marks.removed(low, int(below[-1]) + 1)[below - low]
            yield from zip(below.tolist(), removed.tolist(), strict=True)
        for offset in some[some >= bound].tolist():
            yield offset, None


def _how(side: str, unexplained: str, explained: bool | None) -> str | None:
    if explained:
        return None
    return f"is only {side}" if explained is None else f"is only {side}, and {unexplained}"


def _marked(records: pa.RecordBatch, may_leave: np.ndarray) -> pa.RecordBatch:
    """``may_leave``: whether a tombstone may have been removed from the other side."""
    return _columns(records.column("key"), offsets_of(records), may_leave & ~valid_of(records.column("value")))


def _columns(keys: pa.Array, offsets: np.ndarray, tombstones: np.ndarray | None) -> pa.RecordBatch:
    rows = len(keys)
    no = pa.repeat(False, rows) if tombstones is None else booleans(tombstones)
    return pa.RecordBatch.from_arrays(
        [integers(offsets), keys, pa.nulls(rows, pa.int32()), no], names=["offset", "key", "control", "tombstone"]
    )
