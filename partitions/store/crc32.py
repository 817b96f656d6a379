"""Computes the CRC-32 of a whole from the CRC-32 of each piece, in any order."""

from __future__ import annotations

import threading

from isal import isal_zlib


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
                crc32 = isal_zlib.crc32_combine(crc32, following, size_bytes)
        return crc32

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the pieces so far."""
        with self._lock:
            return sum(size_bytes for _, size_bytes in self._pieces.values())
