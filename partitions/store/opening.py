"""From the address of a root to its store."""

from __future__ import annotations

import threading

from partitions.clock import Clock, SystemClock
from partitions.errors import UnsupportedStoreError
from partitions.store.local import LocalStore
from partitions.store.memory import MemoryStore
from partitions.store.protocol import Store, StoreOptions
from partitions.store.s3 import S3Store

_DEFAULTS = StoreOptions()
_CLOCK = SystemClock()

_memory_lock = threading.Lock()
_memory_stores: dict[str, MemoryStore] = {}


def open_store(uri: str, options: StoreOptions = _DEFAULTS, clock: Clock = _CLOCK) -> Store:
    """The store at ``uri``; asks the storage nothing yet (``Store.check`` does).

    ``file:///folder`` or ``/folder``: a folder that exists, taken literally (no percent-escapes);
    ``s3://bucket/prefix``; ``memory://name``: one store per name and process, with the clock of its
    first opening.

    Raises: UnsupportedStoreError for anything else.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator and uri.startswith("/"):
        return LocalStore(uri, clock)
    if separator and scheme == "file" and rest.startswith("/"):
        return LocalStore(rest, clock)
    if separator and scheme == "s3" and rest.partition("/")[0]:
        bucket, _, prefix = rest.partition("/")
        return S3Store(bucket, prefix, options, clock)
    if separator and scheme == "memory" and rest:
        with _memory_lock:
            return _memory_stores.setdefault(rest, MemoryStore(uri, clock))
    raise UnsupportedStoreError(
        f"no store can be opened at {uri!r}: use file:///absolute/folder, /absolute/folder, "
        "s3://bucket/prefix or memory://name"
    )
