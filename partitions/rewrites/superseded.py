"""The records of a partition that a rule removes (``partitions.removal``), found within a bound of memory.

One pass over the keys and offsets below the rule's bound marks the offsets whose key has a later record. Keys are
compared in full; their hashes only select the keys to compare with one another. A table of keys that exceeds the
bound is reduced to the last offset of each key. If that is not enough, the table is split by the hash into files
in a folder, each of which is reduced separately, and split again if necessary.

The result is a byte for each offset, in a file that is mapped into memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import booleans, bools_of, integers, integers_of, valid_of
from stratalog.partitions.digest import key_hashes
from stratalog.partitions.errors import StorageError
from stratalog.partitions.records import GAP
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.comparable_keys import flat_keys

_PARTS_BITS = 4
_HASH_BITS = 64
_READ_ROWS = 65_536
_REMOVED, _TOMBSTONE = np.uint8(1), np.uint8(2)
_OFFSET = "offset"


class Superseded:
    """The offsets in ``[start, rule.bound)`` that ``rule`` removes. A context; its files are deleted at the
    end.
    """

    def __init__(self, start: int, rule: Rule, memory_bytes: int, folder: Path | None = None) -> None:
        """``memory_bytes`` bounds each table of keys; ``folder`` is the folder for files, by default the system's
        folder for temporary files. Raises: StorageError when the folder cannot be written.
        """
        self._start, self._rule = start, rule
        self._memory_bytes = memory_bytes
        rows = max(rule.bound - start, 1)
        with _writing(folder or Path(tempfile.gettempdir())), ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
            marks = self._folder / "marks"
            # Allocate all blocks now. Writing to a mapped sparse file on a full disk kills the process.
            with marks.open("wb") as file:
                for at in range(0, rows, _READ_ROWS):
                    file.write(bytes(min(_READ_ROWS, rows - at)))
            self._stack = stack.pop_all()
        self._marks = np.memmap(marks, np.uint8, "r+", shape=(rows,))
        self._files = 0
        self.keyless = 0
        """The number of removed records without a key."""
        self.deepest = 0
        """The number of times that keys were split by their hash."""

    def __enter__(self) -> Superseded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def find(self, records: Iterable[pa.RecordBatch]) -> None:
        """Find which of ``records`` the rule removes. Their columns are ``offset``, ``key``, ``control`` (with the
        outcomes of transactions), and ``tombstone``, which says whether the value is null. The records must be all
        records from the start to the bound, in any order, with keys of one type.

        Raises: StorageError when the folder cannot be written.
        """
        self._reduce(self._keyed(records), 0)
        self._marks[(self._marks & _TOMBSTONE) != 0] |= _REMOVED

    def removed(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        """A boolean for each offset in ``[start, end)``: whether the rule removes its record; False for a gap."""
        found: npt.NDArray[np.bool_] = (self._marks[start - self._start : end - self._start] & _REMOVED) != 0
        return found

    def _keyed(self, records: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Tables of keys and offsets, without gaps, and without records that are removed in any case."""
        for batch in records:
            offsets = integers_of(batch.column("offset")) - self._start
            inside = offsets < self._rule.bound - self._start
            control = batch.column("control")
            gap = bools_of(pc.fill_null(pc.equal(control, GAP), False))
            kept = ~valid_of(control) & valid_of(batch.column("key"))
            self._marks[offsets[inside & ~kept & ~gap]] = _REMOVED
            self.keyless += int(np.count_nonzero(inside & ~kept & ~valid_of(control)))
            old = offsets < self._rule.tombstones_before - self._start
            tombstone = bools_of(batch.column("tombstone"))
            self._marks[offsets[inside & kept & old & tombstone]] = _TOMBSTONE
            key = batch.column("key").filter(booleans(inside & kept))
            if len(key):
                columns = {f"key{index}": column for index, column in enumerate(flat_keys(key))}
                yield pa.table({**columns, _OFFSET: integers(offsets[inside & kept])})

    def _reduce(self, tables: Iterable[pa.Table], depth: int) -> None:
        """Mark all offsets of a key but the last; the keys have been split by their hash ``depth`` times."""
        held: pa.Table | None = None
        parts: _Parts | None = None
        for table in tables:
            held = table if held is None else pa.concat_tables([held, table])
            if held.nbytes > self._memory_bytes:
                held = self._latest(held)
                if held.nbytes > self._memory_bytes // 2 and _PARTS_BITS * (depth + 1) <= _HASH_BITS:
                    parts = parts or _Parts(self._folder, self._number(), depth)
                    parts.add(held)
                    held = None
        if held is not None:
            held = self._latest(held)
        if parts is None:
            return
        if held is not None:
            parts.add(held)
        del held
        self.deepest = max(self.deepest, depth + 1)
        for file in parts.close():
            self._reduce(_read(file), depth + 1)
            file.unlink()

    def _number(self) -> int:
        self._files += 1
        return self._files

    def _latest(self, table: pa.Table) -> pa.Table:
        """The rows with the last offset of each key; all other rows are marked."""
        table = table.combine_chunks()
        keys = [_one_chunk(table.column(name)) for name in table.column_names if name != _OFFSET]
        offsets = integers_of(_one_chunk(table.column(_OFFSET)))
        hashes = _hashes(keys)
        order = np.lexsort((offsets, hashes))
        same = hashes[order[1:]] == hashes[order[:-1]]
        rows, later = order[:-1][same], order[1:][same]
        if not len(rows):
            return table
        equal = _are_equal(keys, rows, later)
        mixed = np.isin(hashes, hashes[rows[~equal]])  # different keys with the same hash, which are few
        rows, later = rows[~mixed[rows]], later[~mixed[rows]]
        self._marks[offsets[rows[offsets[rows] < offsets[later]]]] |= _REMOVED
        kept = ~mixed
        kept[rows] = False
        found = [table.filter(booleans(kept))]
        if mixed.any():
            found.append(self._latest_of_groups(table.filter(booleans(mixed))))
        return pa.concat_tables(found)

    def _latest_of_groups(self, table: pa.Table) -> pa.Table:
        """Like ``_latest``, but without hashes, for few rows: it takes ten times the memory of the rows."""
        keys = [name for name in table.column_names if name != _OFFSET]
        last = table.group_by(keys, use_threads=False).aggregate([(_OFFSET, "max")])
        last = last.select([*keys, f"{_OFFSET}_max"]).rename_columns([*keys, _OFFSET])
        if last.num_rows < table.num_rows:
            lasting = integers_of(last.column(_OFFSET).combine_chunks())
            tombstones = self._marks[lasting] & _TOMBSTONE
            self._marks[integers_of(table.column(_OFFSET).combine_chunks())] |= _REMOVED
            self._marks[lasting] = tombstones
        return last


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column of a table whose chunks were combined."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _hashes(keys: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """The hash of each row, computed piece by piece, because hashing takes much memory per row."""
    starts = range(0, len(keys[0]), _READ_ROWS)
    return np.concatenate([key_hashes([key.slice(at, _READ_ROWS) for key in keys]) for at in starts])


def _are_equal(
    keys: Sequence[pa.Array], rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """For each row in ``rows``, whether its key equals the key of the row at the same place in ``others``."""
    equal = np.ones(len(rows), np.bool_)
    for at in range(0, len(rows), _READ_ROWS):
        one, other = integers(rows[at : at + _READ_ROWS]), integers(others[at : at + _READ_ROWS])
        for key in keys:
            left, right = key.take(one), key.take(other)
            both = bools_of(pc.fill_null(pc.equal(left, right), False))
            equal[at : at + _READ_ROWS] &= both | ~(valid_of(left) | valid_of(right))
    return equal


class _Parts:
    """Tables that are split by bits of the hash into files, which are written one table at a time."""

    def __init__(self, folder: Path, number: int, depth: int) -> None:
        self._folder = folder
        self._files = [folder / f"{number}-{part}" for part in range(1 << _PARTS_BITS)]
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._shift = np.uint64(_HASH_BITS - _PARTS_BITS * (depth + 1))

    def add(self, table: pa.Table) -> None:
        """Append each row to its part; the table must have rows."""
        with _writing(self._folder):
            self._add(table)

    def _add(self, table: pa.Table) -> None:
        table = table.combine_chunks()
        keys = [table.column(name).chunk(0) for name in table.column_names if name != _OFFSET]
        hashes = _hashes(keys)
        part_of = (hashes >> self._shift) & np.uint64((1 << _PARTS_BITS) - 1)
        for part in range(1 << _PARTS_BITS):
            rows = table.filter(booleans(part_of == part))
            if rows.num_rows:
                if part not in self._writers:
                    self._writers[part] = pa.ipc.new_stream(self._files[part], table.schema)
                self._writers[part].write_table(rows, max_chunksize=_READ_ROWS)

    def close(self) -> Iterator[Path]:
        """The files of the parts that have rows; after this nothing may be added."""
        with _writing(self._folder):
            for writer in self._writers.values():
                writer.close()
        yield from (self._files[part] for part in sorted(self._writers))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A context that writes to the folder. Raises: StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: the keys of a compaction cannot be written to this folder for temporary files ({error}); "
            "free space there, or set TMPDIR to another folder"
        ) from error


def _read(file: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])
