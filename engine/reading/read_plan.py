"""The plan of a batch read as a value: exact offsets, and the files that held them when the plan was made. Pure.

The plan pins offsets. The record at an offset never changes, whichever file contains it. So if files of a plan
have been merged or tiered since, the plan reads their successors, and returns the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import overload

from stratalog.engine.reading.plan import FileRange
from stratalog.engine.reading.positions import time_text
from stratalog.partitions.html_table import MOST_ROWS, head_line, html_table
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lookup import TimeRange
from stratalog.partitions.printable import printable


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The read of one partition: the offsets ``[start, end)``."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    files: tuple[FileRange, ...]
    """In order of offsets over ``[start, end)``, without files that the isolation level hides."""
    epochs: tuple[tuple[int, int], ...]
    """The leader epochs of these offsets, each with its first offset (at least ``start``)."""
    racks: tuple[tuple[int, str | None], ...]
    """Racks of the brokers whose files are read."""
    pruned_files: int = 0
    """The number of the partition's files without records of the range."""
    pruned_bytes: int = 0
    lost: tuple[int, int] | None = None
    """Requested offsets that are deleted; only set if the read may skip them."""


@dataclass(frozen=True, slots=True)
class ReadPlan(Sequence[FileRange]):
    """The file ranges of a read, by topic, partition and offset, with the bounds and options from which they were
    chosen. ``Cluster.read`` returns the same rows for a plan each time.
    """

    partitions: tuple[PartitionPlan, ...]
    key_schema: str | None
    """The key schema of all topics, as in ``TopicImage``; ``value_schema`` likewise."""
    value_schema: str | None
    times: TimeRange | None = None
    """Keep only records of these times; None: all."""
    client_rack: str | None = None
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    _ranges: tuple[FileRange, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ranges", tuple(part for one in self.partitions for part in one.files))

    def __len__(self) -> int:
        return len(self._ranges)

    @overload
    def __getitem__(self, index: int) -> FileRange: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[FileRange]: ...

    def __getitem__(self, index: int | slice) -> FileRange | Sequence[FileRange]:
        return self._ranges[index]

    def __iter__(self) -> Iterator[FileRange]:
        return iter(self._ranges)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return "\n".join(map(printable, self._sums()))

    def _repr_html_(self) -> str:
        rows = (
            (f"{one.topic}-{one.partition}", part, dict(one.racks))
            for one in self.partitions
            for part in one.files
        )
        first = [[name, *_cells(part, racks)] for name, part, racks in islice(rows, MOST_ROWS)]
        columns = ("partition", "offsets", "from", "bytes", "file")
        table = html_table(columns, first, numbers=["bytes"], total=len(self))
        return "".join([*(head_line(line.strip()) for line in self._sums()), table])

    @property
    def topics(self) -> dict[str, list[FileRange]]:
        """The file ranges by topic; empty for a topic from which nothing is read."""
        found: dict[str, list[FileRange]] = {}
        for one in self.partitions:
            found.setdefault(one.topic, []).extend(one.files)
        return found

    @property
    def records(self) -> int:
        """The number of offsets; includes markers, aborted records and records of other times."""
        return sum(one.end - one.start for one in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The bytes of the files. A scan reads only the columns and row groups that it needs."""
        return sum(part.size_bytes for part in self)

    @property
    def cross_rack_bytes(self) -> int | None:
        """Bytes of local files outside the reader's rack; None if the reader's rack is unknown."""
        if self.client_rack is None:
            return None
        return sum(
            part.size_bytes
            for one in self.partitions
            for part in one.files
            if part.broker is not None and dict(one.racks).get(part.broker) != self.client_rack
        )

    @property
    def notes(self) -> list[str]:
        """Notes on deleted records that the read skips."""
        return [
            f"{one.topic}-{one.partition}: offsets [{one.lost[0]}, {one.lost[1]}) were deleted, and are skipped"
            for one in self.partitions
            if one.lost is not None
        ]

    def explain(self) -> str:
        """The plan as text: totals, then each partition with its files."""
        lines = self._sums()
        for one in self.partitions:
            lines.append(f"{one.topic}-{one.partition} [{one.start}, {one.end})")
            lines += [f"  {'  '.join(_cells(part, dict(one.racks), ' bytes'))}" for part in one.files]
        return "\n".join(map(printable, lines))

    def _sums(self) -> list[str]:
        remote = [part for part in self if part.remote]
        at_most = "" if self.times is None else "at most "
        lines = [
            f"read {', '.join(self.topics)}: {at_most}{_count(self.records, 'record')} of "
            f"{_count(len(self.partitions), 'partition')}",
            f"  {_count(len(self), 'file')}, {self.size_bytes:,} bytes: {len(self) - len(remote)} local, "
            f"{len(remote)} remote ({sum(part.size_bytes for part in remote):,} bytes)",
            f"  skipped by {'offset' if self.times is None else 'time'}: "
            f"{_count(sum(one.pruned_files for one in self.partitions), 'file')}, "
            f"{sum(one.pruned_bytes for one in self.partitions):,} bytes",
        ]
        if self.times is not None:
            start, end = (None if at is None else time_text(at) for at in (self.times.start_us, self.times.end_us))
            bounds = " and ".join([f">= {start}"] * (start is not None) + [f"< {end}"] * (end is not None))
            lines.append(f"  of these files only records with a timestamp {bounds}")
        if (across := self.cross_rack_bytes) is not None:
            lines.append(f"  reader in rack {self.client_rack}: {across:,} bytes of local files cross racks")
        if self.isolation is not Isolation.READ_UNCOMMITTED:
            lines.append(f"  {self.isolation}: up to the last stable offset, without aborted transactions")
        return lines + [f"  {note}" for note in self.notes]


def _cells(part: FileRange, racks: dict[int, str | None], unit: str = "") -> tuple[str, str, str, str]:
    where = "remote"
    if not part.remote:
        rack = None if part.broker is None else racks.get(part.broker)
        where = f"broker {part.broker}" + ("" if rack is None else f" (rack {rack})")
    of = "" if part.whole else f" of [{part.file_start}, {part.file_end})"
    return f"[{part.start}, {part.end}){of}", where, f"{part.size_bytes:,}{unit}", part.uri


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
