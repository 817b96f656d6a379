"""Of the producer state, what a footer holds: all of it, or only what has changed since an earlier file.

A partition may know ten thousand producers, and an append changes one. So its footer holds the producers that were
touched since an earlier offset (``since``), each with its entry, or none where it was forgotten. Some earlier file
holds all of them.

    touched      every producer whose entry changed at or behind ``since``, and every one whose transaction is open
    rule         the state after the file is the state at *any* offset from ``since`` on up to the file's own end,
                 with the touched entries in its place. So no certain file has to stay: a merge over the one that
                 ended at ``since``, or the ``.local`` register of a log that starts later, does as well
    levels       changes since a whole state (the first level), or since a file with changes of the first level:
                 so the state is in three files (four, where replicas have merged each for itself), and an append
                 costs the footer some dozens of producers

An open transaction stands in each footer: states in merged segments, the remote tier and snapshots call none open.
Segments in the remote tier, snapshots and ``.local`` registers are whole: they leave their log. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.partitions.producers import ProducerEntry, ProducerState

_FEW = 16
"""Producers that cost a footer little. A level of more is followed by one of its own."""
_SMALL = 32
"""Up to this number of producers all are written."""
_PART_OF_ALL = 16
"""A whole state is written when as much as its sixteenth part was touched, or takes less of the file than that."""
_ENTRY_BYTES = 64

Changes = Mapping[str, ProducerEntry | None]
"""Entries of producers; None: forgotten."""


class Level(NamedTuple):
    """The producers that were touched since an offset."""

    since: int
    names: frozenset[str]


Levels = tuple[Level, ...]
"""Those that the last file's state rests on, the earliest ``since`` first; none: it is whole."""


class ProducerPart(NamedTuple):
    """The part of a state that a footer holds: all of it where ``since`` is None."""

    entries: Changes
    since: int | None = None


def whole(state: ProducerState, _: int) -> ProducerPart:
    """All of a state."""
    return ProducerPart(state)


def part_of(level: Level, state: ProducerState, file_bytes: int) -> ProducerPart:
    """The touched producers of a state, for the footer of a file of ``file_bytes``; or all, where these are few,
    or little beside the file."""
    few = len(state) <= max(_SMALL, 2 * len(level.names))
    if few or len(state) * _ENTRY_BYTES * _PART_OF_ALL <= file_bytes:
        return whole(state, file_bytes)
    return ProducerPart({name: state.get(name) for name in level.names}, level.since)


def next_level(levels: Levels | None, touched: Iterable[str], producers: int, log_end: int) -> Level | None:
    """The producers that the footer of the next file has to hold, of a log whose last file rests on ``levels`` and
    ends at ``log_end``; ``producers`` is the number of all. None: all of them; as where no file is there to refer
    to (``levels`` is None).
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
    """The state with these entries in the place of its own."""
    return {name: entry for name, entry in {**state, **changes}.items() if entry is not None}


def levels_after(levels: Levels | None, part: ProducerPart) -> Levels:
    """The levels of a log with one more file, whose footer holds ``part``."""
    if part.since is None:
        return ()
    last = Level(part.since, frozenset(part.entries))
    below = (level for level in levels or () if level.since < last.since)
    return *(Level(level.since, level.names | last.names) for level in below), last


def told_together(files: Sequence[tuple[int, ProducerPart]], start: int) -> ProducerPart:
    """The part that neighbouring files tell together, of ``(base offset, part)`` of each, in order: that of the
    last one, of the one among them that it rests on, and so on, back to one that is whole, or that rests on what
    lies before ``start``.
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
    """The part of the ``state`` after an append that its footer holds: the producer has appended at the end of a
    log that rests on ``levels`` and whose state was ``before``; others may have been forgotten."""
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
