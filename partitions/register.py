"""The content of a register of a replica: a line of JSON, and its checksum.

A register decides about whole histories, and its JSON may still be valid after a bit flip.
"""

from __future__ import annotations

from isal import isal_zlib

from stratalog.partitions.errors import InvalidCallError

REGISTER_BYTES = 16 * 1024 * 1024
"""The size limit of a register: enough for a hundred thousand producers of one partition."""
EPOCH_BYTES = 1024 * 1024
"""The size limit of an ``.epoch`` register: enough for forty thousand elections of one partition, which take 12 MB
in memory.
"""


def sealed(line: bytes, most: int = REGISTER_BYTES) -> bytes:
    """The content of a register with this line, and its CRC-32 in hexadecimal as a second line.

    Raises: InvalidCallError if the register would be too large to be read again.
    """
    if len(line) + 9 > most:
        raise InvalidCallError(
            f"a register of {len(line)} bytes is too long to be read again, and is not written: {line[:80]!r}..."
        )
    return b"%s\n%08x" % (line, isal_zlib.crc32(line))


def unsealed(content: bytes) -> bytes:
    """The line of a register. Raises: ValueError if its checksum is wrong."""
    line, _, checksum = content.rpartition(b"\n")
    if checksum != b"%08x" % isal_zlib.crc32(line):
        raise ValueError("the checksum differs")
    return line
