"""Objects of storage, read into memory up to a bound and decoded by one decoder.

Anybody who writes to a root may leave gigabytes, or a thousand brackets, under a name of ours. So a small file is
read by one request that ends at its kind's bound, however large it is; its JSON is decoded here and nowhere else
(the linter holds that); and whatever is wrong with either is one error, which names the file.

Depth is bounded by the interpreter's limit of recursion, which the decoder keeps: types that name their fields let
nothing nest but what nobody asked for. Whole numbers are bounded where a type says so
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
    """A JSON text as a value of the type ``kind``; by default, of whatever types it says.

    Raises: ValueError for a text that is no JSON (NaN and the infinities, bytes that are no UTF-8, halves of
        surrogate pairs among it), is of another type, or nests too deeply.
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
    """As ``parse_json``, of a text that storage gave: ``what`` names it, and says what it should have been.

    Raises: CorruptionError.
    """
    try:
        return parse_json(text, kind)
    except ValueError as error:
        raise CorruptionError(f"{what}: {error}") from error


def described(kind: type[T]) -> type[T]:
    """The type, after msgspec has described it to itself: for ``msgspec.convert`` and its like."""
    _decoder(cast(Hashable, kind))
    return kind


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: TID251 - the one place
    with _describing:
        return msgspec.json.Decoder(kind)  # noqa: TID251 - the one place


_describing = Lock()
"""msgspec describes a struct at its first use, and lets other threads see the description while it is half made:
the process dies of it (segmentation fault, msgspec 0.22)."""


def read_bounded(store: Store, name: str, most_bytes: int) -> bytes:
    """All of an object of at most ``most_bytes`` bytes, by one request that never brings more.

    Raises: FileNotFoundError; CorruptionError for a larger one; StorageError kinds.
    """
    data = store.read(name, 0, most_bytes + 1)
    check_size(len(data), most_bytes, store, name)
    return data


def read_listed(store: Store, stored: StoredObject, most_bytes: int) -> bytes:
    """As ``read_bounded``, of the very object that a listing saw. One that is too large is not asked for.

    Raises: SourceChangedError when it is gone, or is another one now; CorruptionError; StorageError kinds.
    """
    check_size(stored.size_bytes, most_bytes, store, stored.name)
    with store.open(stored) as source:
        return source.read(most_bytes)


def check_size(size_bytes: int, most_bytes: int, store: Store, name: str) -> None:
    """Raises: CorruptionError where an object has more bytes than any that was written of its kind."""
    if size_bytes > most_bytes:
        raise CorruptionError(
            f"{store.uri_of(name)} has more than {most_bytes} bytes: stratalog never writes a larger one"
        )
