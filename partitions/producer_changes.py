"""The part of the producer state that a footer holds: all producers, or the changes since an earlier file.

A partition may have ten thousand producers, and an append changes one of them. So its footer holds only the
producers touched since an earlier offset (``since``), each with its entry, or without an entry if it was dropped.
Some earlier file holds all producers.

    touched   every producer whose entry changed at or after ``since``, or whose transaction is open
    rule      the state after the file is the state at *any* offset from ``since`` up to the file's end, updated by
              the touched entries. So no particular file must be kept: a merged segment that covers the file that
              ended at ``since`` works, and so does the ``.local`` register of a log that starts later
    levels    the first level has the changes since a complete state, and the second level has the changes since a
              file of the first level. So the state is in three files (four, if replicas merged separately), and a
              footer has some dozens of producers

Each footer has all open transactions. (Merged segments, the remote tier and snapshots have none open.) Segments in
the remote tier, snapshots and ``.local`` registers leave their log, so they hold the complete state. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.partitions.producers import ProducerEntry, ProducerState

_FEW = 16
"""A number of producers that costs little in a footer. A level with more producers is followed by another
level.
"""
_SMALL = 32
"""Up to this number of producers, all are written."""
_PART_OF_ALL = 16
"""The complete state is written if more than 1/16 of its producers were touched, or if it takes at most 1/16 of
the file.
"""
_ENTRY_BYTES = 64

Changes = Mapping[str, ProducerEntry | None]
"""Entries of producers; None for a dropped producer."""


class Level(NamedTuple):
    """The producers that were touched since an offset."""

    since: int
    names: frozenset[str]


Levels = tuple[Level, ...]
"""The levels on which the state of the last file is based, lowest ``since`` first; empty if that state is
complete.
"""


class ProducerPart(NamedTuple):
    """The part of a state in a footer; complete if ``since`` is None."""

    entries: Changes
    since: int | None = None


def whole(state: ProducerState, _: int) -> ProducerPart:
    """The complete state."""
    return ProducerPart(state)


def part_of(level: Level, state: ProducerState, file_bytes: int) -> ProducerPart:
    """The touched producers of a state, for the footer of a file of ``file_bytes``; all producers if they are few,
    or small compared with the file.
    """
    few = len(state) <= max(_SMALL, 2 * len(level.names))
    if few or len(state) * _ENTRY_BYTES * _PART_OF_ALL <= file_bytes:
        return whole(state, file_bytes)
    return ProducerPart({name: state.get(name) for name in level.names}, level.since)


def next_level(levels: Levels | None, touched: Iterable[str], producers: int, log_end: int) -> Level | None:
    """The producers that the next file's footer must hold, for a log whose last file is based on ``levels`` and
    ends at ``log_end``; ``producers`` is the number of all producers. None: all producers, for example when there
    is no earlier file (``levels`` is None).
    """
    names = frozenset(touched)
    if levels is None:
        return None
    if levels and len(levels[-1].names | names) <= _FEW:
        return Level(levels[-1].since, levels[-1].names | names)
    if len(levels) < 2:
        return Level(log_end, names)
    first = levels[0].names | names
    return Level(levels[0].since, first) if len(first) * _PART_OF_ALL <= producers else None


def applied(state: ProducerState, changes: Changes) -> dict[str, ProducerEntry]:
    """The state updated by these entries."""
    return {name: entry for name, entry in {**state, **changes}.items() if entry is not None}


def levels_after(levels: Levels | None, part: ProducerPart) -> Levels:
    """The levels of a log after one more file, whose footer holds ``part``."""
    if part.since is None:
        return ()
    last = Level(part.since, frozenset(part.entries))
    below = (level for level in levels or () if level.since < last.since)
    return *(Level(level.since, level.names | last.names) for level in below), last


def combined(files: Sequence[tuple[int, ProducerPart]], start: int) -> ProducerPart:
    """The combined part of neighboring files, given the ``(base offset, part)`` of each file in order. The last
    part is combined with the earlier parts on which it is based, back to a complete part, or to a part based on an
    offset before ``start``.
    """
    _, part = files[-1]
    entries, since = part
    for base_offset, part in reversed(files):
        if since is None or since <= start:
            break
        if base_offset < since:
            entries, since = {**part.entries, **entries}, part.since
    return ProducerPart(entries, since)


def part_after(
    before: ProducerState,
    levels: Levels | None,
    producer_id: str,
    log_end: int,
    state: ProducerState,
    file_bytes: int,
) -> ProducerPart:
    """The part of ``state`` for the footer of an append by ``producer_id`` at ``log_end``. Up to there the log has
    the state ``before``, based on ``levels``. Other producers may have been dropped from ``state``.
    """
    touched = {producer_id}
    if len(state) < len(before) + (producer_id not in before):
        touched |= before.keys() - state.keys()
    touched |= _open_transactions(state, {*levels[-1].names, producer_id} if levels else state)
    level = next_level(levels, touched, len(state), log_end)
    return whole(state, file_bytes) if level is None else part_of(level, state, file_bytes)


def _open_transactions(state: ProducerState, names: Iterable[str]) -> set[str]:
    """The producers among ``names`` whose transaction is open."""
    entries = ((name, state.get(name)) for name in names)
    return {name for name, entry in entries if entry is not None and entry.txn_first_offset is not None}
