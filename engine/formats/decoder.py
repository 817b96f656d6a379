"""The seam of all formats: bytes become a value of a declared type, or an error says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from stratalog.partitions.errors import InvalidCallError

AVRO, CONFLUENT_AVRO, JSON, PROTOBUF = "avro", "confluent-avro", "json", "protobuf"
DECODED = (AVRO, CONFLUENT_AVRO, JSON, PROTOBUF)
"""The names of formats that have a schema."""


class UndecodedError(ValueError):
    """The bytes are no value of the schema."""


class Decoder(Protocol):
    """Decodes the values of one schema."""

    schema: str
    """The type of the values, as Spark's JSON text: a struct."""

    def decode(self, value: bytes) -> dict[str, Any]:
        """A value, as ``pyarrow.array`` takes it. Raises: UndecodedError."""
        ...


def open_decoder(how: str, schema_file: str, message: str | None = None) -> Decoder:
    """The decoder of the format ``how`` (``DECODED``) by the schema in a file: an Avro schema; a type as DDL or
    Spark's JSON text; a FileDescriptorSet, of which ``message`` is the full name of one.

    Raises: InvalidCallError for a file that holds no such schema, or one that no topic can have;
        EnvironmentUnusableError without the package that reads it.
    """
    path = Path(schema_file)
    if (message is not None) != (how == PROTOBUF):
        raise InvalidCallError("a name of a message goes together with the format protobuf, and is needed there")
    if how in (AVRO, CONFLUENT_AVRO):
        from stratalog.engine.formats.avro import avro_decoder  # here: fastavro is an extra

        return avro_decoder(path, framed=how == CONFLUENT_AVRO)
    if how == JSON:
        from stratalog.engine.formats.json_text import json_decoder

        return json_decoder(path)
    if how == PROTOBUF:
        from stratalog.engine.formats.protobuf import protobuf_decoder  # here: protobuf is an extra

        assert message is not None
        return protobuf_decoder(path, message)
    raise InvalidCallError(f"format {how!r} is unknown: there are {', '.join(DECODED)}")


def schema_bytes(path: Path) -> bytes:
    """The bytes of a schema's file. Raises: InvalidCallError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidCallError(f"the schema {path} cannot be read: {error.strerror}") from error
