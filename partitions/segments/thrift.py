"""Reads Thrift's compact protocol from bytes of any origin: Parquet's footers and page headers.

The caller defines the fields of a struct (``Field``), and the maximum length of its lists. A field of another
kind, a repeated field, or a number outside its kind's range is a ValueError, because readers would disagree about
its meaning. Unknown fields are skipped, as the protocol requires. Only requested fields are kept, nesting is
limited to ``MOST_NESTED``, and a length is only accepted if the bytes exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

MOST_NESTED = 16
"""The maximum nesting of structs and lists; Parquet's own structures nest six deep."""

_BITS = {BYTE: 8, I16: 16, I32: 32, I64: 64}


def varint(data: bytes, at: int, most_bytes: int = 10) -> tuple[int, int]:
    """The number that begins at a byte, and its end. Each byte holds seven bits; there are at most ``most_bytes``
    bytes.

    Raises: ValueError for a longer number; IndexError if the data end within it.
    """
    value = shift = 0
    while shift < 7 * most_bytes:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number has more than {most_bytes} bytes")


@dataclass(frozen=True, slots=True)
class Field:
    """The type of a field's value; ``TRUE`` is the kind of booleans."""

    kind: int
    of: Field | None = None
    """The type of a list's elements."""
    fields: Mapping[int, Field | None] | None = None
    """The fields of a struct by number; None for a field that must not exist."""
    most: int = 0
    """The maximum number of elements of a list."""
    make: Callable[[dict[int, Any]], Any] | None = None
    """Makes the value of a struct; by default, the value is its fields by number."""


class CompactReader:
    """Reads structs from ``data``; all its lists together may have at most ``most_elements``."""

    def __init__(self, data: bytes, most_elements: int) -> None:
        self._data = data
        self._left = most_elements

    def struct(self, at: int, field: Field) -> tuple[Any, int]:
        """The struct that begins at a byte, and its end.

        Raises: ValueError for bytes that are not such a struct.
        """
        try:
            return self._struct(at, field, 0)
        except IndexError:
            raise ValueError("it ends in the middle of a field") from None

    def _struct(self, at: int, field: Field, depth: int) -> tuple[Any, int]:
        if depth > MOST_NESTED:
            raise ValueError(f"it is nested more than {MOST_NESTED} levels deep")
        data, fields = self._data, field.fields or {}
        found: dict[int, Any] = {}
        number = 0
        while head := data[at]:
            at += 1
            kind = head & 15
            if head >> 4:
                number += head >> 4
            else:
                before = number
                number, at = self._number(at, I16)
                if number <= before:
                    raise ValueError(f"field {number} comes after field {before}")
            if number not in fields:
                at = self._pass_over(at, kind, depth + 1)
                continue
            known = fields[number]
            if known is None:
                raise ValueError(f"it has a field {number}, which a segment never has")
            if kind != known.kind and (kind, known.kind) != (FALSE, TRUE):
                raise ValueError(f"its field {number} is of kind {kind}, not {known.kind}")
            # The most frequent kinds are handled here, without a call.
            if kind in (I64, I32):
                value = data[at]
                at += 1
                if value > 0x7F:
                    value, shift = value & 0x7F, 7
                    while (byte := data[at]) > 0x7F and shift < 63:
                        value |= (byte & 0x7F) << shift
                        at, shift = at + 1, shift + 7
                    value |= byte << shift
                    at += 1
                    if value >> _BITS[kind]:
                        raise ValueError(f"a number has more than {_BITS[kind]} bits")
                found[number] = (value >> 1) ^ -(value & 1)
            elif kind <= FALSE:
                found[number] = kind == TRUE
            else:
                found[number], at = self._value(at, known, depth)
        return (found if field.make is None else field.make(found)), at + 1

    def _value(self, at: int, known: Field, depth: int) -> tuple[Any, int]:
        """A value of any kind except booleans."""
        if known.kind == BINARY:
            return self._binary(at)
        if known.kind == STRUCT:
            return self._struct(at, known, depth + 1)
        if known.kind == LIST:
            return self._list(at, known, depth + 1)
        return self._number(at, known.kind)

    def _list(self, at: int, known: Field, depth: int) -> tuple[list[Any], int]:
        of, data = known.of, self._data
        assert of is not None
        size, kind, at = self._list_head(at)
        if size and kind != of.kind:
            raise ValueError(f"a list has elements of kind {kind}, not {of.kind}")
        if size > known.most:
            raise ValueError(f"a list has {size} elements, more than {known.most}")
        self._left -= size
        if self._left < 0:
            raise ValueError("its lists have too many elements")
        values: list[Any] = []
        for _ in range(size):
            if kind != STRUCT and (length := data[at]) < 0x80:
                at += 1
                if kind == BINARY:
                    value: Any = data[at : at + length]
                    at += length
                else:
                    value = (length >> 1) ^ -(length & 1)
            else:
                value, at = self._value(at, of, depth)
            values.append(value)
        return values, at

    def _list_head(self, at: int) -> tuple[int, int, int]:
        head = self._data[at]
        size, at = (head >> 4, at + 1) if head < 0xF0 else varint(self._data, at + 1)
        return size, head & 15, at

    def _binary(self, at: int) -> tuple[bytes, int]:
        size = self._data[at]
        size, at = (size, at + 1) if size < 0x80 else varint(self._data, at)
        end = at + size
        if end > len(self._data):
            raise ValueError("a string is longer than the remaining bytes")
        return self._data[at:end], end

    def _number(self, at: int, kind: int) -> tuple[int, int]:
        if kind == BYTE:
            return self._data[at], at + 1
        value, at = varint(self._data, at)
        bits = _BITS.get(kind, 0)
        if value >> bits:
            raise ValueError(f"a number has more than {bits} bits")
        return (value >> 1) ^ -(value & 1), at

    def _pass_over(self, at: int, kind: int, depth: int) -> int:
        """The end of the value of an unknown field, which is skipped."""
        if depth > MOST_NESTED:
            raise ValueError(f"it is nested more than {MOST_NESTED} levels deep")
        if kind in (TRUE, FALSE):
            return at
        if kind == BYTE:
            return at + 1
        if kind in (I16, I32, I64):
            return varint(self._data, at)[1]
        if kind == DOUBLE:
            return at + 8
        if kind == BINARY:
            return self._binary(at)[1]
        if kind in (LIST, SET):
            size, inner, at = self._list_head(at)
            return self._pass_over_all(at, size, (inner,), depth)
        if kind == MAP:
            size, at = varint(self._data, at)
            if not size:
                return at
            kinds = self._data[at]
            return self._pass_over_all(at + 1, size, (kinds >> 4, kinds & 15), depth)
        if kind == STRUCT:
            return self._struct_end(at, depth)
        raise ValueError(f"a value has kind {kind}, which does not exist")

    def _pass_over_all(self, at: int, size: int, kinds: tuple[int, ...], depth: int) -> int:
        self._left -= size
        if self._left < 0:
            raise ValueError("its lists have too many elements")
        for _ in range(size):
            for kind in kinds:
                at = at + 1 if kind in (TRUE, FALSE) else self._pass_over(at, kind, depth + 1)
        return at

    def _struct_end(self, at: int, depth: int) -> int:
        while head := self._data[at]:
            at += 1
            if not head >> 4:
                at = varint(self._data, at)[1]
            at = self._pass_over(at, head & 15, depth + 1)
        return at + 1
