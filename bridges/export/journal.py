"""The entries of an export's journal, which record its progress, and the resulting state. Pure.

The journal is a topic in the target with one partition and no retention. Entries are JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from stratalog.partitions.bounded import decode_json

PREFIX = "stratalog-export."
"""The beginning of a journal's name; the name of the export follows."""

Range = tuple[int, int]
"""Offsets in this cluster, ``[start, end)``."""
Run = tuple[int, int, int]
"""Records with consecutive offsets on both sides: the first offset here, the first offset in the target, and the
number of records.
"""


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The entry that begins an export, or begins it again after the topic was created again."""

    source: str
    """The topic in this cluster: cluster id and topic id."""
    target_id: str
    """The topic id in the target."""
    kept: bool
    """Whether offsets are kept."""
    asked: str
    """A text that describes the requested records."""
    ranges: dict[int, Range] = {}
    """The ranges by partition at the beginning. For a whole topic, later runs extend the end."""


class Written(msgspec.Struct, frozen=True, tag="written"):
    """The entry for the records ``[start, end)`` of a partition. If offsets are kept, this run or a later run will
    write these records; otherwise they are already written.
    """

    partition: int
    start: int
    end: int
    runs: list[Run] = []
    """The offsets of the records in the target; empty if offsets are kept."""


Entry = Begun | Written


def encode(entry: Entry) -> bytes:
    """Encode an entry of the journal."""
    return msgspec.json.encode(entry)


def decode(data: bytes, what: str) -> Entry:
    """Decode an entry. Raises: CorruptionError, which names ``what``, if the bytes are not an entry."""
    entry: Entry = decode_json(data, Entry, f"{what} is not an export journal entry")
    return entry


@dataclass(slots=True)
class Journal:
    """All entries of an export so far."""

    begun: Begun | None = None
    places: dict[int, int] = field(default_factory=dict)
    """The end of the last piece, by partition."""
    last: dict[int, Range] = field(default_factory=dict)
    """The last piece, by partition."""
    runs: dict[int, list[Run]] = field(default_factory=dict)
    """The runs by partition, in the order of offsets."""
    entries: list[Entry] = field(default_factory=list)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the next entries."""
        for entry in entries:
            self.entries.append(entry)
            match entry:
                case Begun():
                    self.begun, self.places, self.last, self.runs = entry, {}, {}, {}
                case Written():
                    self.places[entry.partition] = entry.end
                    self.last[entry.partition] = entry.start, entry.end
                    self.runs.setdefault(entry.partition, []).extend(entry.runs)


def runs_of(here: Sequence[int], there: Sequence[int]) -> list[Run]:
    """Convert the ascending offsets of the same records, here and in the target, to runs."""
    found: list[Run] = []
    for one, other in zip(here, there, strict=True):
        if found:
            start, target, count = found[-1]
            if (one, other) == (start + count, target + count):
                found[-1] = start, target, count + 1
                continue
        found.append((one, other, 1))
    return found
