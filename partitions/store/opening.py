"""From the address of a root to its store."""

from __future__ import annotations

import threading

from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.address import EXAMPLES, Address, parse_address
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.object import missing_packages
from stratalog.partitions.store.protocol import Store, StoreOptions

_DEFAULTS = StoreOptions()
_CLOCK = SystemClock()

_memory_lock = threading.Lock()
_memory_stores: dict[str, MemoryStore] = {}


def open_store(
    uri: str | Address, options: StoreOptions = _DEFAULTS, clock: Clock = _CLOCK, *, what: str = "the store"
) -> Store:
    """The store at ``uri``; asks the storage nothing yet (``Store.check`` does).

    ``file:///folder`` or ``/folder``: a folder that exists, taken literally (no percent-escapes);
    ``s3://bucket/prefix``, or ``s3a://``; ``gs://bucket/prefix``; ``az://container/prefix`` or
    ``abfss://container@account.dfs.core.windows.net/prefix``; ``memory://name``: one store per name and process,
    with the clock of its first opening.

    Raises: UnsupportedStoreError for anything else, which names ``what`` and does not repeat the address.
    """
    address = uri if isinstance(uri, Address) else parse_address(uri, what)
    if address.is_folder:
        if not address.path.startswith("/"):
            raise UnsupportedStoreError(
                f"{what}: no store can be opened at a relative path: use /absolute/folder, {EXAMPLES} or "
                "memory://name"
            )
        return LocalStore(address.path, clock)
    of_s3fs = address.scheme == "s3" and options.file_system is None
    if options.driver is not None and address.scheme != "memory" and not of_s3fs:
        try:
            from stratalog.partitions.store.file_system import open_on_file_system
        except ModuleNotFoundError as missing:
            raise missing_packages('driver = "fsspec"', address.scheme, missing) from None
        return open_on_file_system(str(address), options, clock)
    if address.scheme == "s3":
        # Here, for it loads botocore, which clusters on folders have no use for.
        from stratalog.partitions.store.s3 import S3Store

        return S3Store(str(address), options, clock)
    if address.scheme == "memory":
        name = str(address).partition("://")[2]
        with _memory_lock:
            return _memory_stores.setdefault(name, MemoryStore(str(address), clock))
    # Here, for it loads the clients of object storage.
    from stratalog.partitions.store.object_fsspec import FsspecStore

    return FsspecStore(str(address), options, clock)
