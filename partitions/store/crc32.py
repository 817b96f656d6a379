"""Computes the CRC-32 of a whole from the CRC-32 of each piece, in any order.

A checksum is a polynomial over GF(2) modulo the CRC's polynomial, bits reversed; each following byte multiplies it
by a power of x. (Mark Adler's ``crc32_combine`` of zlib, which Python does not offer.)
"""

from __future__ import annotations

import threading
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X = 1 << 30


class PiecewiseCrc32:
    """The CRC-32 of bytes whose pieces arrive in any order, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: dict[int, tuple[int, int]] = {}

    def add(self, index: int, crc32: int, size_bytes: int) -> None:
        """Add the checksum of piece ``index``. A repeated piece replaces the first."""
        with self._lock:
            self._pieces[index] = crc32, size_bytes

    @property
    def value(self) -> int:
        """The CRC-32 of the pieces so far, in the order of their indices."""
        crc32 = 0
        with self._lock:
            for index in sorted(self._pieces):
                following, size_bytes = self._pieces[index]
                crc32 = combined(crc32, following, size_bytes)
        return crc32

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the pieces so far."""
        with self._lock:
            return sum(size_bytes for _, size_bytes in self._pieces.values())


def combined(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two byte strings in sequence, from the CRC-32 of each and the length of the second."""
    return _times(_shift(second_bytes), first) ^ second


@lru_cache(maxsize=1024)
def _shift(size_bytes: int) -> int:
    """x to the power of the number of bits in ``size_bytes`` bytes."""
    power, square, exponent = _ONE, _X, 8 * size_bytes
    while exponent:
        if exponent & 1:
            power = _times(square, power)
        square = _times(square, square)
        exponent >>= 1
    return power


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo the CRC's; the highest bit is the coefficient of x to the power of
    0.
    """
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product
