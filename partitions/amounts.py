"""Bytes and times as readable text."""

from __future__ import annotations

_TIMES = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def bytes_text(count: int) -> str:
    """A size such as ``1 GiB`` or ``512 MiB`` if it is a whole number of units; else the number of bytes."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % size == 0:
            return f"{count // size:,} {unit}"
    return f"{count:,} byte{'' if count == 1 else 's'}"


def span_text(ms: int) -> str:
    """A time span such as ``7 days`` or ``3 s``, in the largest unit that fits at least twice or exactly once,
    rounded down; below a second ``250 ms``.
    """
    left = max(0, ms)
    for unit, length in _TIMES:
        if left >= 2 * length or left == length:
            count = left // length
            return f"{count:,} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{left:,} ms" if left < 1000 else f"{left // 1000} s"
