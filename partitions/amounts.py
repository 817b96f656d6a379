"""Sizes and times as text, and sizes from text. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from stratalog.partitions.errors import InvalidCallError

_TIMES = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def bytes_text(count: int) -> str:
    """A size such as ``1 GiB`` or ``512 MiB`` if it is a whole number of units; else the number of bytes."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % size == 0:
            return f"{count // size:,} {unit}"
    return f"{count:,} byte{'' if count == 1 else 's'}"


def span_text(ms: int) -> str:
    """A time span such as ``7 days``, ``3 s`` or ``250 ms``, rounded down. The unit is the largest that fits into
    the span exactly once, or at least twice.
    """
    left = max(0, ms)
    for unit, length in _TIMES:
        if left >= 2 * length or left == length:
            count = left // length
            return f"{count:,} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{left:,} ms" if left < 1000 else f"{left // 1000} s"


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
_LARGEST = 2**63 - 1
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\Z", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The number of bytes, rounded down: ``2GB`` is 2 * 10^9, ``2GiB`` is 2 * 2^30, ``2048`` is 2048.

    Raises: InvalidCallError.
    """
    found = _SIZE.match(text.strip())
    if found is None:
        raise InvalidCallError(f"{text!r} is not a size: write 200MB, 2GB, 1.5GiB")
    size = Decimal(found[1]) * _UNITS[(found[2] or "").upper()]
    if size > _LARGEST:
        raise InvalidCallError(f"{text!r} is not a size: it is more than {_LARGEST} bytes")
    return int(size)
