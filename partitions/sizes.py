"""Sizes as people write them. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from stratalog.partitions.errors import InvalidCallError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
_LARGEST = 2**63 - 1
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\Z", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes, rounded down: ``2GB`` is 2 * 10^9, ``2GiB`` is 2 * 2^30, ``2048`` is itself.

    Raises: InvalidCallError.
    """
    found = _SIZE.match(text.strip())
    if found is None:
        raise InvalidCallError(f"{text!r} is no size: write 200MB, 2GB, 1.5GiB")
    size = Decimal(found[1]) * _UNITS[(found[2] or "").upper()]
    if size > _LARGEST:
        raise InvalidCallError(f"{text!r} is no size: it is more than {_LARGEST} bytes")
    return int(size)
