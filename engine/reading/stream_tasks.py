"""Divides the records of a stream's batch into tasks. Pure, except for reading footers of large files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from stratalog.partitions.lookup import FileSlice

LEAST_TASK_BYTES = 8 * 1024 * 1024
MOST_TASK_BYTES = 128 * 1024 * 1024
"""Bounds for the compressed bytes per task. A smaller task costs more overhead than work; a larger task delays the
batch.
"""
_USUAL_TASKS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file for a stream to read, and its approximate size in bytes."""

    partition: int
    piece: FileSlice
    size_bytes: int


def part(partition: int, piece: FileSlice) -> Part:
    """A piece of a partition's log with its approximate size, as if all records of its file had the same size."""
    name = piece.file.name
    end = piece.end if name.next_offset is None else name.next_offset
    rows = max(end - name.base_offset, 1)
    return Part(partition, piece, piece.file.object.size_bytes * (piece.end - piece.start) // rows)


def task_bytes(total_bytes: int, min_partitions: int | None) -> int:
    """The bytes that one task should read if a batch has ``total_bytes``."""
    usual = min(max(total_bytes // _USUAL_TASKS, LEAST_TASK_BYTES), MOST_TASK_BYTES)
    return usual if min_partitions is None else max(1, min(usual, total_bytes // min_partitions))


def split(whole: Part, most_bytes: int, group_ends: Callable[[FileSlice], Sequence[int]]) -> list[Part]:
    """Divide the part between row groups into parts of about ``most_bytes``; ``group_ends`` gives the end offsets
    of the file's row groups in order.
    """
    if whole.size_bytes <= most_bytes:
        return [whole]
    piece = whole.piece
    cuts = [*(end for end in group_ends(piece) if piece.start < end < piece.end), piece.end]

    def cut(start: int, end: int) -> Part:
        size = whole.size_bytes * (end - start) // (piece.end - piece.start)
        return Part(whole.partition, replace(piece, start=start, end=end), size)

    parts: list[Part] = []
    start = last = piece.start
    for end in cuts:
        if last > start and cut(start, end).size_bytes > most_bytes:
            parts.append(cut(start, last))
            start = last
        last = end
    return [*parts, cut(start, last)]


def group_ends(piece: FileSlice) -> list[int]:
    """The end offsets of the row groups of a file, from its footer, for ``split``."""
    return piece.segment.row_group_offsets[1:]


def pack(parts: Iterable[Part], most_bytes: int) -> list[list[Part]]:
    """Pack the parts into tasks of at most ``most_bytes``, or of one larger part. Parts stay in order, so a task
    has consecutive parts of a partition.
    """
    tasks: list[list[Part]] = []
    filled = 0
    for one in parts:
        if not tasks or filled + one.size_bytes > most_bytes:
            tasks.append([])
            filled = 0
        tasks[-1].append(one)
        filled += one.size_bytes
    return tasks
