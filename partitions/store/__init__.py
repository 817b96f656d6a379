"""Storage roots with exclusive create: memory, ``file://``, ``s3://``, ``abfss://``, ``az://`` and ``gs://``.

The contract is ``protocol.Store``; one suite (``tests/unit/test_store_contract_*.py``) tests all stores against
it. ``open_store(uri, options)`` picks the implementation by scheme.

    protocol        the contract
    rules           rules common to all stores: names, ranges, counting, stable listings
    two_scans       a listing without gaps, from two scans during writes
    opening         from an address to its store
    reader, crc32   a file that reads by ranges; the checksum of pieces
    memory          a store in memory, for tests
    storage_time    the storage's time, from its latest answer
    read_only       a store whose changing calls raise
    checking        tests of a storage's guarantees; ``racing`` (concurrent creates of one name)
    local           folders; ``local_folder`` (follows no link), ``local_scan`` (listings), ``local_listing``
                    (updates of an earlier listing), ``local_behind`` (the end of a folder), ``local_watch`` (its
                    changes, as the kernel reports them), ``local_staged`` (files without a name yet),
                    ``local_copy``, ``local_birth``, ``local_rights``, ``local_space``
    object          the common part of object stores; ``requests`` (retries, and the meaning of failures),
                    ``upload_writer`` (a file uploaded in parts)
    encryption      refuses plain HTTP unless allowed, and objects without their key
    resolving       the server, region and account from the environment or a profile
    reached         the server and credentials of a storage, for other clients
    credentials     credentials from the caller's provider, in each process
    s3              buckets by botocore; ``s3_session`` (environment, credentials), ``s3_connection`` (errors),
                    ``s3_bucket`` (by keys), ``s3_upload`` and ``s3_put`` (the bytes first, the name later; or both
                    at once)
    s3_fsspec       the same requests by s3fs
    file_system     any file system of fsspec, by the common calls; ``file_system_calls`` (with a deadline;
                    a server that counts repeated creates)
    object_fsspec   buckets by the file systems of fsspec; ``object_loop`` (event loop), ``object_http`` (HTTP
                    requests), ``object_azure`` (adlfs), ``object_gcs`` (gcsfs)
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
