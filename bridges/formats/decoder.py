"""The interface of all formats: a decoder turns bytes into a value of a declared type, or raises an error with the
reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from stratalog.partitions.errors import InvalidCallError

AVRO, CONFLUENT_AVRO, JSON, PROTOBUF = "avro", "confluent-avro", "json", "protobuf"
Decoded = Literal["avro", "confluent-avro", "json", "protobuf"]
DECODED: tuple[str, ...] = get_args(Decoded)
"""The names of formats that have a schema."""


class UndecodedError(ValueError):
    """The bytes are not a value of the schema."""


class Decoder(Protocol):
    """Decodes the values of one schema."""

    schema: str
    """The type of the values, as Spark's JSON text: a struct."""

    def decode(self, value: bytes) -> dict[str, Any]:
        """Decode bytes to a value that ``pyarrow.array`` accepts. Raises: UndecodedError; errors of a registry."""
        ...


def schema_bytes(path: Path) -> bytes:
    """Read the file of a schema. Raises: InvalidCallError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidCallError(f"the schema {path} cannot be read: {error.strerror}") from error
