"""Opens a decoder from the name of a format and the file of its schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stratalog.bridges.formats.avro import avro_decoder
from stratalog.bridges.formats.decoder import AVRO, CONFLUENT_AVRO, DECODED, JSON, PROTOBUF, Decoder
from stratalog.bridges.formats.json_text import json_decoder
from stratalog.bridges.formats.protobuf import protobuf_decoder
from stratalog.bridges.formats.registry import SchemaRegistry
from stratalog.bridges.formats.typed import TypedValues
from stratalog.partitions.errors import InvalidCallError


def typed_values(
    how: str | None,
    schema: str | None,
    message: str | None = None,
    registry: Mapping[str, str] | None = None,
) -> TypedValues | None:
    """The typed values of the format ``how`` and a schema file, see ``open_decoder``; None if neither is given.
    Raises: InvalidCallError if only one is given; see ``open_decoder``, ``TypedValues``.
    """
    if how is None and schema is None and message is None and not registry:
        return None
    if how is None or schema is None:
        raise InvalidCallError("the format of values and its schema file go together: give both, or neither")
    return TypedValues(open_decoder(how, schema, message, registry))


def open_decoder(
    how: str, schema_file: str, message: str | None = None, registry: Mapping[str, str] | None = None
) -> Decoder:
    """The decoder of the format ``how`` (``DECODED``) for the schema in a file: an Avro schema; a type as DDL or
    Spark's JSON text; a FileDescriptorSet, in which ``message`` is the full name of a message. ``registry`` has
    the configs of a registry with the schemas of Confluent's ids.

    Raises: InvalidCallError for a file without such a schema, or a schema that no topic can have;
    EnvironmentUnusableError if the format's package is not installed.
    """
    path = Path(schema_file)
    if (message is not None) != (how == PROTOBUF):
        raise InvalidCallError("the format protobuf needs the name of a message, and no other format accepts one")
    if registry and how != CONFLUENT_AVRO:
        raise InvalidCallError(
            f"a schema registry is for {CONFLUENT_AVRO}: values of other formats have no schema id"
        )
    if how in (AVRO, CONFLUENT_AVRO):
        asked = SchemaRegistry(registry) if registry else None
        return avro_decoder(path, framed=how == CONFLUENT_AVRO, registry=asked)
    if how == JSON:
        return json_decoder(path)
    if how == PROTOBUF:
        assert message is not None
        return protobuf_decoder(path, message)
    raise InvalidCallError(f"format {how!r} is unknown; known formats: {', '.join(DECODED)}")
