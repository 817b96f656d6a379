"""Reads the fields of Kafka's messages of flexible versions (KIP-482) from untrusted bytes. Pure."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator

from stratalog.partitions.errors import CorruptionError


class Fields:
    """Reads one field after another. Raises: CorruptionError, which names ``what``, for bytes that end too early
    or have impossible lengths.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._at, self.what = data, 0, what

    @property
    def left(self) -> int:
        """The bytes that have not been read."""
        return len(self._data) - self._at

    def bytes_of(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if not 0 <= size <= self.left:
            raise CorruptionError(f"{self.what} end before a field of {size} bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: str) -> int:
        """An integer of fixed size: ``b``, ``h``, ``i`` or ``q`` (or their unsigned kinds), big-endian."""
        found: int = struct.unpack(f">{form}", self.bytes_of(struct.calcsize(form)))[0]
        return found

    def varint(self) -> int:
        """An unsigned integer of one to five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.bytes_of(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptionError(f"{self.what} hold a number of more than five bytes")

    def uuid(self) -> str:
        """An id in Kafka's notation: URL-safe base64 without padding."""
        return base64.urlsafe_b64encode(self.bytes_of(16)).decode().rstrip("=")

    def compact_string(self) -> str:
        """A text after its length."""
        try:
            return self.bytes_of(self.varint() - 1).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"{self.what} hold text that is not UTF-8") from error

    def compact_bytes(self) -> bytes | None:
        """Bytes after their length, or None."""
        size = self.varint()
        return None if size == 0 else self.bytes_of(size - 1)

    def count(self) -> int:
        """The number of elements of a compact array; at most the number of remaining bytes."""
        count = self.varint() - 1
        if not 0 <= count <= self.left:
            raise CorruptionError(f"{self.what} hold an array of {count} elements in {self.left} bytes")
        return count

    def tagged(self) -> Iterator[tuple[int, bytes]]:
        """The tagged fields, each with its tag."""
        count = self.varint()
        if count > self.left:
            raise CorruptionError(f"{self.what} hold {count} tagged fields in {self.left} bytes")
        for _ in range(count):
            tag = self.varint()
            yield tag, self.bytes_of(self.varint())
