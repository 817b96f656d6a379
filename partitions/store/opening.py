"""From the address of a root to its store."""

from __future__ import annotations

import re
import threading

from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store, StoreOptions

_DEFAULTS = StoreOptions()
_CLOCK = SystemClock()

OBJECT_SCHEMES = ("abfss", "az", "gs")
"""Of object stores that are reached through fsspec."""
SCHEMES = ("file", "s3", "memory", *OBJECT_SCHEMES)
"""Of all stores."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_INSTEAD = {
    "file": "write file:///absolute/folder",
    "abfs": "write abfss://container@account.dfs.core.windows.net/prefix, which is encrypted",
    "wasb": "write abfss://container@account.dfs.core.windows.net/prefix",
    "wasbs": "write abfss://container@account.dfs.core.windows.net/prefix",
    "gcs": "write gs://, which is what it means",
    "s3n": "write s3://, which is what it means",
    "dbfs": "a mounted path, /dbfs or /Volumes, is a folder, but one that has no hard links: use s3://bucket/prefix",
}

_memory_lock = threading.Lock()
_memory_stores: dict[str, MemoryStore] = {}


EXAMPLES = (
    "file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or "
    "abfss://container@account.dfs.core.windows.net/prefix"
)


def scheme_of(uri: str) -> str | None:
    """The part before the first colon of an address, in small letters; None of a path, as ``./a:b`` is one."""
    found = _SCHEME.match(uri)
    return None if found is None else found[1].lower()


def same_spelling(uri: str) -> str:
    """The address with ``s3://`` where it is spelt ``s3a://``, which is the same."""
    return "s3://" + uri[6:] if uri.startswith("s3a://") else uri


def instead_of(scheme: str) -> str:
    """Advice for an address with a scheme that no store has."""
    if len(scheme) == 1:
        return "drives of Windows are no roots: use a folder of a POSIX file system, or s3://bucket/prefix"
    known = f"use a folder, {EXAMPLES}"
    return _INSTEAD.get(scheme, f"{known} (a folder with a colon in its name: ./{scheme}:...)")


def holds_secret(uri: str) -> bool:
    """Whether an address carries credentials (``s3://key:secret@bucket``) or a signature (``?sig=...``). It would
    be in plans, logs and metadata: nobody opens it, and nobody says it again."""
    scheme, separator, rest = uri.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    named = scheme.lower() == "abfss" and not {":", "@"} & set(user)  # the container, before its account
    return bool(separator) and scheme.lower() != "file" and ("?" in rest or (bool(at) and not named))


NO_SECRETS = "give credentials by the environment (AWS_ACCESS_KEY_ID ...), or name a profile or a provider"


def open_store(uri: str, options: StoreOptions = _DEFAULTS, clock: Clock = _CLOCK) -> Store:
    """The store at ``uri``; asks the storage nothing yet (``Store.check`` does).

    ``file:///folder`` or ``/folder``: a folder that exists, taken literally (no percent-escapes);
    ``s3://bucket/prefix``, or ``s3a://``; ``gs://bucket/prefix``; ``az://container/prefix`` or
    ``abfss://container@account.dfs.core.windows.net/prefix``; ``memory://name``: one store per name and process,
    with the clock of its first opening.

    Raises: UnsupportedStoreError for anything else.
    """
    if holds_secret(uri):
        raise UnsupportedStoreError(f"no store can be opened at an address that holds a secret: {NO_SECRETS}")
    uri = same_spelling(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator and uri.startswith("/"):
        return LocalStore(uri, clock)
    if separator and scheme == "file" and rest.startswith("/"):
        return LocalStore(rest, clock)
    if separator and scheme == "s3" and rest.partition("/")[0]:
        # Here, for it loads botocore, which clusters on folders have no use for.
        from stratalog.partitions.store.s3 import S3Store

        bucket, _, prefix = rest.partition("/")
        return S3Store(bucket, prefix, options, clock)
    if separator and scheme in OBJECT_SCHEMES and rest.partition("/")[0]:
        # Here, for it loads the clients of object storage.
        from stratalog.partitions.store.object_fsspec import FsspecStore

        return FsspecStore(uri, options, clock)
    if separator and scheme == "memory" and rest:
        with _memory_lock:
            return _memory_stores.setdefault(rest, MemoryStore(uri, clock))
    if (named := scheme_of(uri)) is not None and named not in SCHEMES:
        raise UnsupportedStoreError(f"no store can be opened at {uri!r}: {instead_of(named)}")
    raise UnsupportedStoreError(
        f"no store can be opened at {uri!r}: use /absolute/folder, {EXAMPLES} or memory://name"
    )
