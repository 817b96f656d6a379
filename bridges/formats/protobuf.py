"""Messages of Protobuf, by ``protobuf`` and a file of descriptors
(``protoc --include_imports --descriptor_set_out=FILE``); and the declared type of a message.

An unset field is null if Protobuf tracks its presence; otherwise it has its default value. A message with fields
that its descriptor lacks is not decoded, because those fields would be lost.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.bridges.formats.decoder import UndecodedError, schema_bytes
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

_TIMESTAMP = "google.protobuf.Timestamp"
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


class ProtobufValues:
    """See ``stratalog.bridges.formats.decoder.Decoder``."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """``descriptors`` is a FileDescriptorSet. Raises: see ``protobuf_decoder``."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(
                "Protobuf values need protobuf, which is not installed: pip install 'stratalog[protobuf]'"
            ) from error
        self._given = descriptors, message
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
                pool.Add(file)
            found = pool.FindMessageTypeByName(message)
        except Exception as error:  # protobuf raises many kinds of errors for an invalid file
            raise InvalidCallError(f"it has no readable descriptor of {message!r}: {error}") from error
        self._class = message_factory.GetMessageClass(found)
        self.schema = json.dumps(_struct(found, ()))

    def __reduce__(self) -> tuple[type[ProtobufValues], tuple[bytes, str]]:
        return ProtobufValues, self._given

    def decode(self, value: bytes) -> Any:
        """Raises: UndecodedError."""
        made = self._class()
        try:
            made.ParseFromString(value)
            return _values(made)
        except UndecodedError:
            raise
        except Exception as error:  # protobuf raises many kinds of errors here, too
            raise UndecodedError(str(error)) from error


def protobuf_decoder(path: Path, message: str) -> ProtobufValues:
    """Create the decoder. Raises: InvalidCallError for a file without such a message, or a message that no topic
    can have; EnvironmentUnusableError without protobuf.
    """
    try:
        return ProtobufValues(schema_bytes(path), message)
    except EnvironmentUnusableError:
        raise
    except InvalidCallError as error:
        raise InvalidCallError(f"the schema {path}: {error}") from error


def _struct(message: Descriptor, above: tuple[str, ...]) -> Any:
    """Raises: InvalidCallError."""
    if message.full_name in above:
        raise InvalidCallError(f"{message.full_name} is recursive, so it cannot be a column")
    inside = (*above, message.full_name)
    fields = [
        {"name": field.name, "type": _type(field, inside), "nullable": True, "metadata": {}}
        for field in message.fields
    ]
    if not fields:
        raise InvalidCallError(f"{message.full_name} has no fields, and a struct column needs at least one")
    return {"type": "struct", "fields": fields}


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> Any:
    if _is_map(field):
        key, value = field.message_type.fields
        return {
            "type": "map",
            "keyType": _single(key, above),
            "valueType": _single(value, above),
            "valueContainsNull": True,
        }
    one = _single(field, above)
    return {"type": "array", "elementType": one, "containsNull": True} if field.is_repeated else one


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> Any:
    kinds = {
        field.CPPTYPE_BOOL: "boolean",
        field.CPPTYPE_INT32: "integer",
        field.CPPTYPE_INT64: "long",
        field.CPPTYPE_UINT32: "long",
        field.CPPTYPE_UINT64: "decimal(20,0)",
        field.CPPTYPE_FLOAT: "float",
        field.CPPTYPE_DOUBLE: "double",
        field.CPPTYPE_ENUM: "string",
    }
    if field.type == field.TYPE_BYTES:
        return "binary"
    if field.cpp_type == field.CPPTYPE_STRING:
        return "string"
    if field.cpp_type != field.CPPTYPE_MESSAGE:
        return kinds[field.cpp_type]
    return "timestamp" if field.message_type.full_name == _TIMESTAMP else _struct(field.message_type, above)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _values(message: Message) -> dict[str, Any]:
    """Raises: UndecodedError."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        raise UndecodedError(f"{message.DESCRIPTOR.full_name} has fields that its descriptor lacks")
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    found = getattr(message, field.name)
    if _is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        return [(key, _one(found[key], of_value)) for key in sorted(found)]
    if field.is_repeated:
        return [_one(one, field) for one in found]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(found, field)


def _one(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type == field.CPPTYPE_ENUM:
        named = field.enum_type.values_by_number.get(value)
        if named is None:
            raise UndecodedError(f"{value} is not a {field.enum_type.full_name}")
        return named.name
    if field.cpp_type != field.CPPTYPE_MESSAGE:
        return value
    if field.message_type.full_name != _TIMESTAMP:
        return _values(value)
    micros, rest = divmod(value.nanos, 1000)
    if rest:
        raise UndecodedError("a time is not a whole number of microseconds")
    return _BEGIN + timedelta(seconds=value.seconds, microseconds=micros)
