"""The remote tier: moves the prefix of a log off the brokers' disks, and lets a replica work without it (KIP-405).

Purpose
    Sealed segments of a leader are copied into one folder per topic and listed in one Delta table there. After
    that, the brokers may delete their own files. A follower that lost its disk starts at the end of the remote log
    (KIP-1023). The table is both the metadata of the tier and the topic's history for any lake engine.

KIP-405's pieces, and their counterparts here
    RemoteStorageManager            a ``stratalog.partitions.store.Store``: stage, commit, read, delete
    RemoteLogMetadataManager        the Delta table (``delta_table``): adds and removes, atomic, versioned
    RemoteLogSegmentMetadata        an add action with its statistics (``remote_segment``, ``statistics``)
    RemoteLogManager's task         ``plan`` (due uploads, expiry), ``copier`` (the upload)
    unclean leader election         ``divergence``: the remote part of the leader's history
    leftovers of failed copies      ``remote_objects``: which objects of a folder are litter
    none: foreign writers           ``foreign_commits``: their effect on the remote log
    none: a name that is taken      ``copier``: compares the object of that name with the bytes of an upload
    none: another history           ``same_records``: the first offset with different records on leader and remote
    none: a damaged object          ``rebuilder``: rebuilds it from a replica, under a new name
    its list of topic-partitions    ``schedule``: when each is due, and what failed, since when
    remote log index                none: Parquet's own statistics and page index, and the footer
    auxiliary state                 the footer of the last remote segment (``bootstrap``)
    none: a restored cluster        ``delta_table``: takes the tables over
    none: compacted topics          ``removal``: the rules by which records leave; ``removing``: rewrites segments
    none: erased records            ``erasure``: the order of steps; ``erasing``: finds records, rewrites segments

    COPY_SEGMENT_STARTED            uploaded, not in the table: found again under its own name, and reused
    COPY_SEGMENT_FINISHED           an add action in a commit
    DELETE_SEGMENT_STARTED          a remove action in a commit
    DELETE_SEGMENT_FINISHED         the object is deleted (``DeltaTopicTable.vacuum``)
    DELETE_PARTITION_MARKED         ``stratalog.deleted`` in the table, before the topic leaves the metadata
    DELETE_PARTITION_STARTED        the folder is emptied, the log of the table last
    DELETE_PARTITION_FINISHED       the folder is empty

The Delta table
    ``delta_reader`` reads the table, and ``delta_table`` changes it. Both use ``delta_entries`` (the table's log,
    checked before delta-rs reads it), ``delta_commit`` (one atomic version), ``delta_metadata`` (a version without
    files), ``delta_options`` (the address) and ``delta_schema``. ``remote_log`` is the content of the table, and
    ``remote_change`` a batch of changes to it.
    ``listed_files`` groups the files by writer, ``foreign_files`` reads records in files of other writers, and
    ``remote_file`` reads objects.

Tables of a topic
    ``iceberg_table`` also lists the segments of the remote log in a catalog of the user
    (``iceberg_files``: the files that the table's metadata may name; ``iceberg_avro``: the bytes of these files;
    ``iceberg_history``: the traces of erased records in them).
    ``topic_table`` has the common code of a topic's tables (``tombstones``: the removed files that a checkpoint
    names). One table is the remote log. The other table,
    ``snapshot_table``, is for topics that are not tiered. It has the latest record of each key, in files that
    ``published`` describes.

The invariant
    Copy -> commit -> delete, always in this order. An object exists before the table lists it; the table
    lists it before a broker deletes it; the table drops it before the object is deleted. The remote log holds
    every offset of one history once, without gaps. A commit that would break this invariant is refused in advance.
    Other writers may change the table, too: their rewrites are recognized and reverted, and a table to which they
    have written data is refused (``foreign_commits``).

In and out
    In: the listing of a leader (``ReplicaLog``), a remote ``Store``, policies. Out: plans, uploads that
    travel from tasks to the driver, ``RemoteLog`` (the fold of the table at one version), ``FetchOrigin``.

``docs/kips.md`` lists the parts of KIP-405 without a counterpart.
"""

if __name__ != "stratalog.tiering":
    raise ImportError(
        'import "stratalog.tiering", not "tiering": under two names each module would be loaded twice'
    )
