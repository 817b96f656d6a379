"""The entries of an export's journal, which tell its progress, and the state that they add up to. Pure.

The journal is a topic there with one partition, of which nothing is deleted. Entries are JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from stratalog.partitions.bounded import decode_json

PREFIX = "stratalog-export."
"""The beginning of a journal's name; the name of the export follows."""

Range = tuple[int, int]
"""Offsets here, half open."""
Run = tuple[int, int, int]
"""Records that are side by side here and there: the first one's offset here, its offset there, how many."""


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """An export begins, or begins anew in a topic that was made anew."""

    source: str
    """The topic here: cluster id and topic id."""
    target_id: str
    """The topic id there."""
    kept: bool
    """Whether offsets there are those here."""
    asked: str
    """Which records were asked for, in words."""
    ranges: dict[int, Range] = {}
    """By partition, as they were then. Where all of the topic was asked for, the end moves on."""


class Written(msgspec.Struct, frozen=True, tag="written"):
    """The records of the offsets ``[start, end)`` of a partition are written; where offsets are kept: will be, by
    nobody but the run that says so, or its successors."""

    partition: int
    start: int
    end: int
    runs: list[Run] = []
    """Where they are there; where offsets are kept: empty."""


Entry = Begun | Written


def encode(entry: Entry) -> bytes:
    """As it stands in the journal."""
    return msgspec.json.encode(entry)


def decode(data: bytes, what: str) -> Entry:
    """Raises: CorruptionError for anything else than an entry of ``what``."""
    entry: Entry = decode_json(data, Entry, f"{what} is no entry of an export's journal")
    return entry


@dataclass(slots=True)
class Journal:
    """All entries of an export so far."""

    begun: Begun | None = None
    places: dict[int, int] = field(default_factory=dict)
    """By partition, where the last piece ends."""
    last: dict[int, Range] = field(default_factory=dict)
    """By partition, the last piece."""
    runs: dict[int, list[Run]] = field(default_factory=dict)
    """By partition, in the order of offsets."""
    entries: list[Entry] = field(default_factory=list)

    def add(self, entries: Iterable[Entry]) -> None:
        """These come next."""
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
    """The offsets of records here and there, both ascending, as runs."""
    found: list[Run] = []
    for one, other in zip(here, there, strict=True):
        if found:
            start, target, count = found[-1]
            if (one, other) == (start + count, target + count):
                found[-1] = start, target, count + 1
                continue
        found.append((one, other, 1))
    return found
