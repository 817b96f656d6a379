"""The remote tier: how the prefix of a log leaves the disks, and how a replica does without it (KIP-405).

Purpose
    Sealed segments of a leader are copied into one folder per topic and listed in one Delta table there;
    then they may leave the brokers. A follower that lost its disk begins where the remote log ends
    (KIP-1023). The table is at once the metadata of the tier and the topic's history for any lake engine.

KIP-405's pieces, and what they are here
    RemoteStorageManager            a ``stratalog.partitions.store.Store``: stage, commit, read, delete
    RemoteLogMetadataManager        the Delta table (``delta_table``): adds and removes, atomic, versioned
    RemoteLogSegmentMetadata        an add action with its statistics (``remote_segment``, ``statistics``)
    RemoteLogManager's task         ``plan`` (what is due, what goes), ``copier`` (bring it there)
    unclean leader election         ``divergence``: the remote part of the leader's history, and who may say
    leftovers of failed copies      ``remote_objects``: what of a folder is litter
    none: others write the table    ``foreign_commits``: what that makes of the remote log
    none: a name that is taken      ``same_content``: whether its object has the bytes that an upload would make
    none: an object was damaged     ``rebuilder``: made anew from a replica, under a name of its own
    its list of topic-partitions    ``schedule``: when each is due, and what failed, since when
    remote log index                none: Parquet's own statistics and page index, and the footer
    auxiliary state                 the footer of the last remote segment (``bootstrap``)
    none: a restored cluster        takes the tables over (``handover``)

    COPY_SEGMENT_STARTED            uploaded, not in the table: found again under its own name, and reused
    COPY_SEGMENT_FINISHED           an add action in a commit
    DELETE_SEGMENT_STARTED          a remove action in a commit
    DELETE_SEGMENT_FINISHED         the object is deleted (``DeltaTopicTable.vacuum``)
    DELETE_PARTITION_MARKED         ``stratalog.deleted`` in the table, before the topic leaves the metadata
    DELETE_PARTITION_STARTED        the folder is emptied, the log of the table last
    DELETE_PARTITION_FINISHED       the folder is empty

The table by the means of Delta
    ``delta_reader`` and ``delta_table`` read and change it, through ``delta_entries`` (its log, checked before
    delta-rs reads it), ``delta_commit`` (a version put, or none), ``delta_options`` (where it is) and
    ``delta_schema``. ``remote_log`` is what it lists,
    ``remote_change`` a batch of changes to it, ``listed_files`` the files by whom they are of,
    ``foreign_files`` the records of those that others have written, ``remote_file`` a look into an object.

Tables of a topic
    ``iceberg_table`` lists the segments of the remote log in a catalog of the user's, too
    (``iceberg_files``: what its metadata may name; ``iceberg_options``: where it is).
    ``topic_table`` is what they have in common. The remote log is one. The other, ``snapshot_table``, is of topics
    that are not tiered: the latest record of each key, in files that ``published`` describes.

The invariant
    Copy -> commit -> delete, always in this order. An object exists before the table lists it; the table
    lists it before a broker lets go of it; the table forgets it before the object goes. The remote holds
    every offset once, without gaps, and of one history: a commit that would break this is refused before it
    is made. Changes of others to the table are no part of it: a rewrite is seen through and taken back, a write of
    data is refused (``foreign_commits``).

In and out
    In: the listing of a leader (``ReplicaLog``), a remote ``Store``, policies. Out: plans, uploads that
    travel from tasks to the driver, ``RemoteLog`` (the fold of the table at one version), ``FetchOrigin``.

May not know
    pyspark, the cluster metadata, who leads. Pure modules (``remote_segment``, ``remote_log``,
    ``statistics``, ``plan``, the decision in ``bootstrap``) do no I/O and know no clock.

Where KIP-405 has no counterpart: ``docs/kips.md``.
"""

if __name__ != "stratalog.tiering":
    raise ImportError('write "stratalog.tiering", not "tiering": under two names each module would be there twice')
