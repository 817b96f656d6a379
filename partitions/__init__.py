"""The log of one replica: names, storage, and everything that follows from a listing.

Purpose
    A broker is a storage root. The log of one replica is a folder of write-once files under such a root; its
    lineage, live files, log end offset and high watermark *follow from the listing*. This package names, writes,
    reads, lists, merges and expires those files. It does not decide who may do so: leadership, in-sync replicas
    and clusters belong to ``engine``.

Modules
    Names and numbers: ``paths`` (every name in storage), ``identity`` (ids), ``numbers``, ``offsets``,
    ``isolation``, ``spelling``, ``printable``, ``html_table``, ``amounts`` (bytes and times to and from text),
    ``version``, ``errors`` (every error, grouped by what the caller must do), ``unwritable`` (the error of a root
    that refuses writes), ``secret_files`` (reads of keys and passwords).

    The folder of a replica: ``listing`` (live files, chain, ends), ``lineage`` (which epoch wrote what),
    ``replica`` (one replica on one root), ``known_log`` (a log updated from an earlier listing), ``root``
    (its ``broker.json``), ``register`` (small files), ``discarded``, ``retention``.

    Records: ``records`` and ``columns``, ``declared`` (types as users write them), ``growth`` (of schemas),
    ``unknown_fields`` (fields that a type lacks), ``cluster_key``, ``digest``, ``producers`` and
    ``producer_changes`` (in footers), ``transactions``, ``lookup`` (by time).

    ``segments``: a data file. ``rewrites``: files that replace others. Their rules and protocols: ``removal``
    (compaction) and ``erasure``.

    Work: ``runner`` (threads), ``probing`` (calls that may hang), ``backoff``, ``group_commit``,
    ``clock``, ``agreed_time`` (deletion by time needs two clocks that agree). Memory:
    ``cache`` (with a shared memory budget), ``bounded``, ``bulk``. Storage: ``store``.

In and out
    In: a ``Store`` (memory, folders, object storage) and the names of ``paths``. Out: values (``Listing``,
    ``ReplicaLog``, ``SegmentFooter``) and plans (``rewrites.merge``, ``retention``), which the layers above
    execute.

Checksums
    A file contains the checksum of its bytes (``segments.footer``, ``register``). This checksum is compared with
    the checksum of the copied bytes (``StagedCopy.crc32``) before a copy gets a name (``segments.check``), so
    damage in storage does not spread. Checksums are CRC-32, computed by ISA-L (``isal``) in a tenth of zlib's
    time: they add almost nothing to the cost of a copy.

Bytes of unknown origin
    Any writer may have written the bytes, with correct checksums. So a small reader in this package inspects the
    footer and the pages of a segment, within bounds (``segments.parquet_footer``, ``segments.parquet_pages``),
    before Arrow decodes it (``segments.parquet_decoding``). Decoding needs no child process, which would cost half
    a second and a copy of the decoded data, and every reader refuses the same files. Spark's executors decode the
    same files by themselves: a hostile file costs them the memory that its pages claim. Spark has to bound this
    memory: at worst the task fails, or the executor is lost and the query fails.

S3
    S3 is accessed through ``botocore``. Staging needs multipart uploads that are completed later, with
    ``If-None-Match``, and a synchronous client survives Spark's forked Python workers.
"""

if __name__ != "stratalog.partitions":
    raise ImportError(
        'import "stratalog.partitions", not "partitions": under two names each module would be loaded twice'
    )
