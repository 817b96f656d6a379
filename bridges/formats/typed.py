"""Columns of decoded values. A value is a struct: ``_undecoded``, the bytes of a value that could not be decoded,
and then the declared fields. If ``_undecoded`` is set, every other field is null; a null value is null. No field
of a source's value is dropped: if the schema lacks a field, the value stays as bytes. So ``on_unknown_field`` does
not apply here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stratalog.bridges.formats.decoder import Decoder, UndecodedError
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import type_from_json

UNDECODED = "_undecoded"
"""The first field of a typed value, because a schema grows at its end."""

_WRONG = (pa.ArrowException, UndecodedError, OverflowError, TypeError, ValueError, ArithmeticError)
"""Errors for a value that does not match the type."""


class TypedValues:
    """The decoded values of a topic. It can be pickled if the decoder can."""

    def __init__(self, decoder: Decoder) -> None:
        """Raises: InvalidCallError for a schema that already has a field ``_undecoded``."""
        self._decoder = decoder
        fields = parse_json(decoder.schema)["fields"]
        if any(field["name"].lower() == UNDECODED for field in fields):
            raise InvalidCallError(
                f"the schema has a field {UNDECODED!r}: that name is reserved for bytes that are not decoded"
            )
        first = {"name": UNDECODED, "type": "binary", "nullable": True, "metadata": {}}
        every = [first, *({**field, "nullable": True} for field in fields)]
        self.schema = json.dumps({"type": "struct", "fields": every}, separators=(",", ":"))
        """The type of the topic's values, as Spark's JSON text."""
        self.type = type_from_json(self.schema)

    def column(self, values: Sequence[bytes | None]) -> pa.Array:
        """The values as a column of the topic."""
        decoded = [None if value is None else self._decoded(value) for value in values]
        try:
            return pa.array(decoded, self.type)
        except _WRONG:  # some decoded value does not fit: find that value
            return pa.array(
                [self._fitting(one, value) for one, value in zip(decoded, values, strict=True)], self.type
            )

    def _decoded(self, value: bytes) -> dict[str, Any]:
        try:
            return self._decoder.decode(value)
        except UndecodedError:
            return {UNDECODED: value}

    def _fitting(self, decoded: dict[str, Any] | None, value: bytes | None) -> dict[str, Any] | None:
        try:
            pa.array([decoded], self.type)
        except _WRONG:
            return {UNDECODED: value}
        return decoded


def undecoded(values: pa.Array) -> int:
    """The number of values in a topic's column that could not be decoded; 0 for a column of bytes."""
    if not pa.types.is_struct(values.type) or values.type.get_field_index(UNDECODED) != 0:
        return 0
    kept = values.flatten()[0]  # null if the struct is null
    return len(kept) - int(kept.null_count)


def canonical(value: Any) -> bytes | None:
    """The bytes by which to compare a Python value from Arrow; for an undecoded value, its original bytes."""
    if value is None or isinstance(value, bytes):
        return value
    kept = value.get(UNDECODED) if isinstance(value, dict) else None
    return kept if isinstance(kept, bytes) else repr(value).encode()
