"""Storage roots with exclusive create: memory, ``file://`` and ``s3://``.

The contract is ``protocol.Store``; one suite (``tests/unit/test_store_contract_*.py``) holds all three
to it. ``open_store(uri, options)`` picks the implementation by scheme.
"""

from stratalog.partitions.store.opening import open_store
from stratalog.partitions.store.protocol import (
    LEFT_ALONE,
    Staged,
    StagedCopy,
    StagedWriter,
    Store,
    StoreCounts,
    StoredObject,
    StoreOptions,
)

__all__ = [
    "LEFT_ALONE",
    "Staged",
    "StagedCopy",
    "StagedWriter",
    "Store",
    "StoreCounts",
    "StoreOptions",
    "StoredObject",
    "open_store",
]
