"""Storage roots with exclusive create: memory, ``file://``, ``s3://``, ``abfss://``, ``az://`` and ``gs://``.

The contract is ``protocol.Store``; one suite (``tests/unit/test_store_contract_*.py``) holds all of them
to it. ``open_store(uri, options)`` picks the implementation by scheme.

    protocol        the contract
    rules           rules that no store may have otherwise: names, ranges, counting, stable listings
    two_scans       the listing that two scans beside writers make: why it has no hole
    opening         from an address to its store
    reader, crc32   a file over ranged reads; the checksum of pieces
    memory          the twin of real storage
    storage_time    the time there, as it was told last
    read_only       a store that is only read
    checking        whether a storage keeps the rules; ``racing`` (many that create one name)
    local           folders; ``local_folder`` (no link is followed), ``local_scan`` (listings), ``local_listing``
                    (going on from an earlier listing), ``local_staged`` (files without a name yet),
                    ``local_copy``, ``local_birth``, ``local_rights``, ``local_space``
    object          what all object stores share; ``requests`` (repeated, and what a failure tells),
                    ``upload_writer`` (a file that goes up in parts)
    encryption      no plain HTTP unless it is said, no object without its key
    resolving       the server, region and account that the environment or a profile names
    reached         a storage as clients that are not ours are told of it
    credentials     those that a provider of the caller's gives, in each process
    s3              buckets by botocore; ``s3_session`` (its environment, its credentials), ``s3_connection`` (its
                    errors), ``s3_bucket`` (by keys), ``s3_upload`` and ``s3_put`` (the bytes first, the name
                    later; or both at once)
    s3_fsspec       the same requests by s3fs
    file_system     any file system of fsspec by its own calls; ``file_system_calls`` (opened, with a deadline),
                    ``sending_once`` (how often it sends a creation)
    object_fsspec   buckets by the file systems of fsspec; ``object_loop`` (where they live), ``object_http`` (what
                    is asked of them), ``object_azure`` (adlfs), ``object_gcs`` (gcsfs)
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
