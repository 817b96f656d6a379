"""Thrift's compact protocol as Parquet uses it, without a schema: read into a tree, and written from it.

A struct's tree is a list of ``[field id, type, value]``, a list's is ``(type of elements, [values])``. Invalid
content can be written: duplicate fields, in any order, of any type, and lists with a wrong size.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS = (I16, I32, I64)

_DEPTH = 64


def decode_struct(data: bytes, at: int = 0) -> tuple[list[Any], int]:
    """The struct at this position, and its end. Raises: ValueError, IndexError if it is invalid."""
    return _struct(data, at, 0)


def encode_struct(fields: list[Any]) -> bytes:
    out = bytearray()
    _put_struct(out, fields)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 70:
            raise ValueError("no varint")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _struct(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > _DEPTH:
        raise ValueError("too deep")
    fields: list[Any] = []
    number = 0
    while (head := data[at]) != 0:
        at += 1
        kind = head & 0x0F
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        value, at = _value(data, at, kind, depth)
        fields.append([number, kind, value])
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:
            return kind == TRUE, at
        case 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _zigzag(data, at)
        case 7:
            return data[at : at + 8], at + 8
        case 8:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("beyond the end")
            return data[at : at + size], at + size
        case 9 | 10:
            head, at = data[at], at + 1
            size = head >> 4
            if size == 15:
                size, at = _varint(data, at)
            values = []
            for _ in range(size):
                if head & 0x0F in (TRUE, FALSE):
                    value, at = data[at], at + 1
                else:
                    value, at = _value(data, at, head & 0x0F, depth + 1)
                values.append(value)
            return (head & 0x0F, values), at
        case 12:
            return _struct(data, at, depth + 1)
    raise ValueError(f"no type {kind}")


def _put_varint(out: bytearray, value: int) -> None:
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_zigzag(out: bytearray, value: int) -> None:
    _put_varint(out, (value << 1) ^ (value >> 63))


def _put_struct(out: bytearray, fields: list[Any]) -> None:
    before = 0
    for number, kind, value in fields:
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        if 0 < number - before < 16:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _put_zigzag(out, number)
        before = number
        _put_value(out, kind, value)
    out.append(0)


def _put_value(out: bytearray, kind: int, value: Any) -> None:
    match kind:
        case 3:
            out.append(value & 0xFF)
        case 4 | 5 | 6:
            _put_zigzag(out, value)
        case 7:
            out += value
        case 8:
            _put_varint(out, len(value))
            out += value
        case 9 | 10:
            element, values = value[0], value[1]
            size = value[2] if len(value) > 2 else len(values)
            if 0 <= size < 15:
                out.append(size << 4 | element)
            else:
                out.append(0xF0 | element)
                _put_varint(out, size)
            for one in values:
                if element in (TRUE, FALSE):
                    out.append(one & 0xFF)
                else:
                    _put_value(out, element, one)
        case 12:
            _put_struct(out, value)
