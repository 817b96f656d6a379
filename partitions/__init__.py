"""The log of one replica: vocabulary, storage, and everything that follows from a listing.

Purpose
    A broker is a storage root. The log of one replica is a folder of write-once files under such a
    root; its lineage, live files, log end offset and high watermark *follow from the listing*. This
    package knows how to name, write, read, list, merge and expire those files, and nothing about who
    may: leadership, in-sync replicas and clusters are ``engine``'s business.

Rooms
    Names and numbers: ``paths`` (every name in storage), ``identity`` (ids), ``numbers``, ``offsets``,
    ``isolation``, ``spelling``, ``printable``, ``html_table``, ``amounts`` (of bytes and time, for people),
    ``version``, ``errors`` (every error, by what the caller must do), ``unwritable`` (one of them).

    The folder of a replica: ``listing`` (live files, chain, ends), ``lineage`` (which epoch wrote what),
    ``replica`` (one replica on one root), ``known_log`` (going on from an earlier look at it), ``root``
    (its ``broker.json``), ``register`` (small files), ``discarded``, ``retention``.

    A data file: ``records`` and ``columns``, ``declared`` (types by their owner), ``growth`` (of schemas),
    ``unknown_fields`` (which they lack), ``segment`` (reading), ``segment_writer``, ``segment_footer``,
    ``segment_tail``, ``segment_check`` (every byte), ``segment_signature`` and
    ``cluster_key``, ``digest``; of Parquet itself ``thrift``, ``parquet_footer``, ``parquet_pages``,
    ``parquet_decoding``.

    Several files together: ``producers`` and ``producer_changes`` (in footers), ``transactions``, ``lookup`` (by
    time), ``merge`` (what becomes one segment) and ``rewrite`` (making it).

    Work: ``runner`` (threads), ``probing`` (questions to what may hang), ``backoff``, ``group_commit``,
    ``clock``, ``agreed_time`` (what is removed by time goes by two clocks). Memory:
    ``cache``, ``room``, ``bounded``, ``bulk``. Storage: ``store``.

In and out
    In: a ``Store`` (memory, folders, object storage) and the names of ``paths``. Out: values
    (``Listing``, ``ReplicaLog``, ``SegmentFooter``) and plans (``merge``, ``retention``), which the
    layers above carry out.

Whose bytes they are
    A file carries the checksum of its bytes (``segment_footer``, ``register``). A copy tells the checksum of the
    bytes that passed (``StagedCopy.crc32``), and the two are compared before the copy gets a name
    (``segment_check``): damage in storage does not travel. Checksums are CRC-32, as in gzip, computed by ISA-L
    (``isal``) in a tenth of zlib's time: the check costs a copy next to nothing.

Bytes of unknown origin
    Anybody may have written the bytes, with correct checksums. Before Arrow decodes anything, a small reader of
    our own reads a segment's footer (``thrift``, ``parquet_footer``) and inspects its pages (``parquet_pages``).
    This bounds the memory that a row group takes; a form that none of our writers makes is damage. Arrow's own
    description of a column chunk is not used: a contradictory one ends the process. So no child process is needed,
    which would cost half a second and a copy of all that it decodes, and every way in refuses the same files.
    Arrow only gets pages of known sizes whose checksums fit. Spark's executors decode the same files by
    themselves: a hostile file costs them the memory that its pages claim, which is Spark's to bound (a task that
    fails, or an executor that is lost, and the query with it).

May not know
    pyspark, Delta, the cluster metadata. Pure modules (``lineage``, ``listing``, ``producers``, ``merge``,
    ``retention``, ``transactions``, ``paths``, ``offsets``, ``records``, ``register``) do no I/O and know no
    clock.

Where this differs from the design page
    * S3 goes through ``botocore``, the client that fsspec's own S3 file system is built on, and not
      through fsspec: staging needs uncompleted multipart uploads with ``If-None-Match`` on their
      completion, and a synchronous client survives Spark's forked Python workers.
    * ``Store.create`` answers *did I create it?* instead of raising when the name is taken: losing
      the race is an ordinary outcome of the protocol, not an error.
"""

if __name__ != "stratalog.partitions":
    raise ImportError(
        'write "stratalog.partitions", not "partitions": under two names each module would be there twice'
    )
