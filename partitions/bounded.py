"""Objects of storage, read into memory up to a bound and decoded by one decoder.

Any writer to a root may store gigabytes, or a thousand nested brackets, under a name of the log. So a file of a
kind that is normally small is read by one request, which ends at the bound of the kind, however large the file is.
The JSON of such files is decoded here and nowhere else, which the linter checks. Any problem with size or content
raises one kind of error, which names the file.

The decoder respects the interpreter's recursion limit, which bounds nesting. Types that name their fields allow
nesting only in fields that are ignored. Integers are bounded if their type says so
(``stratalog.partitions.numbers``).
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from threading import Lock
from typing import Any, TypeVar, cast, overload

import msgspec

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.protocol import Store, StoredObject

T = TypeVar("T")
Text = bytes | memoryview | str


@overload
def parse_json(text: Text) -> Any: ...
@overload
def parse_json(text: Text, kind: type[T]) -> T: ...
@overload
def parse_json(text: Text, kind: Any) -> Any: ...
def parse_json(text: Text, kind: Any = Any) -> Any:
    """The value of a JSON text, of the type ``kind``; by default, of any JSON type.

    Raises: ValueError if the text is not JSON (for example NaN, an infinity, bytes that are not UTF-8, or an
    unpaired surrogate), has another type, or nests too deeply.
    """
    try:
        return _decoder(kind).decode(text)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


@overload
def decode_json(text: Text, kind: type[T], what: str) -> T: ...
@overload
def decode_json(text: Text, kind: Any, what: str) -> Any: ...
def decode_json(text: Text, kind: Any, what: str) -> Any:
    """``parse_json`` for a text read from storage; ``what`` names the text and the expected content in errors.

    Raises: CorruptionError.
    """
    try:
        return parse_json(text, kind)
    except ValueError as error:
        raise CorruptionError(f"{what}: {error}") from error


def described(kind: type[T]) -> type[T]:
    """The type itself, after msgspec has prepared it for use by ``msgspec.convert`` and the like."""
    _decoder(cast(Hashable, kind))
    return kind


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: TID251 - the one place
    with _describing:
        return msgspec.json.Decoder(kind)  # noqa: TID251 - the one place


_describing = Lock()
"""Serializes the first use of a struct: msgspec 0.22 lets other threads see a half-prepared struct, and crashes
the process (segmentation fault)."""


def read_bounded(store: Store, name: str, most_bytes: int) -> bytes:
    """The content of an object of at most ``most_bytes`` bytes, by one request that reads at most one byte more.

    Raises: FileNotFoundError; CorruptionError for a larger object; StorageError kinds.
    """
    data = store.read(name, 0, most_bytes + 1)
    check_size(len(data), most_bytes, store, name)
    return data


def read_listed(store: Store, stored: StoredObject, most_bytes: int) -> bytes:
    """Like ``read_bounded``, for the exact object of a listing. An object that is too large is not requested.
    Raises: SourceChangedError if the object was deleted or replaced; CorruptionError; StorageError kinds.
    """
    check_size(stored.size_bytes, most_bytes, store, stored.name)
    with store.open(stored) as source:
        return source.read(most_bytes)


def check_size(size_bytes: int, most_bytes: int, store: Store, name: str) -> None:
    """Check the size of an object. Raises: CorruptionError if it is larger than ``most_bytes``."""
    if size_bytes > most_bytes:
        raise CorruptionError(
            f"{store.uri_of(name)} has more than {most_bytes} bytes: stratalog never writes a larger object of "
            "this kind"
        )
