"""The log of one replica: vocabulary, storage, and everything that follows from a listing.

Purpose
    A broker is a storage root. The log of one replica is a folder of write-once files under such a
    root; its lineage, live files, log end offset and high watermark *follow from the listing*. This
    package knows how to name, write, read, list, merge and expire those files, and nothing about who
    may: leadership, in-sync replicas and clusters are ``engine``'s business.

In and out
    In: a ``Store`` (memory, ``file://``, ``s3://``) and the names of ``paths``. Out: values
    (``Listing``, ``ReplicaLog``, ``SegmentFooter``) and plans (``merge``, ``retention``), which the
    layers above carry out.

Whose bytes they are
    A file carries the checksum of its bytes (``segment_footer``, ``register``). A copy tells the checksum of what
    passed (``StagedCopy.crc32``), and whoever copies compares the two before the copy gets a name
    (``segment_check``): what storage has damaged does not travel. Checksums are of CRC-32, as in gzip, computed by
    ISA-L (``isal``), which takes a tenth of zlib's time: checking costs a copy next to nothing.

Whoever wrote them
    Bytes may be anybody's, with checksums that are right. A segment's footer is read by a small reader of our own
    (``thrift``, ``parquet_footer``) and its pages are looked at (``parquet_pages``) before Arrow decodes anything:
    so much memory a row group takes, and no more; what no writer of ours makes is damage. Arrow's own description
    of a column chunk is not used, for where it contradicts itself the process ends. That is why no child process
    is needed: it would cost half a second and a copy of all that it decodes, and what is refused beforehand is
    refused on every way in alike. What is left to Arrow are pages whose sizes are known, of checksums that fit.
    Spark's executors decode the same files by themselves: a hostile one costs them the memory that its pages
    claim, which is Spark's to bound (a task that fails, or an executor that is lost, and the query with it).

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
