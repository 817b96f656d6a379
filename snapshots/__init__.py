"""Snapshots: how the prefix of a log leaves the disks and comes back, where a state stands for it (KIP-630).

Purpose
    A log that is folded into a state (the cluster's metadata, committed offsets, the latest record of every key)
    need not be kept: a snapshot of the state stands for the records ``[0, end offset)``. This package names,
    writes, verifies and fetches snapshots, and decides when one is made, where a log starts, and which go.

KIP-630's pieces, and what they are here
    SnapshotId                          ``snapshot_id``; the file ``<end offset>-<epoch>.checkpoint``
    snapshot format, control records    ``layout``, ``writer``, ``reader``: a data file of the log
    when to snapshot                    ``policy`` (with KIP-876's interval)
    LogStartOffset, what is deleted     ``start_offset``
    Fetch, answered with a SnapshotId   ``fetch.Wanted``, from whoever lists the leader: for a topic
                                        ``engine.replication``, for the metadata ``engine.quorum``
    FetchSnapshot                       ``messages``; the leader's side ``source``, the follower's ``fetch``
    <SnapshotId>.checkpoint.part        one write-once file a chunk: ``chunks``
    Kafka Controller, Metadata Cache    a ``state_machine``, and who holds it

The invariant
    A name is given to whole and verified bytes only, and never again. Nothing is deleted below a log start before
    the snapshot that ends there is frozen; chunks go when the snapshot that they were is.

In and out
    In: stores, listings, numbers that the layers above have gathered. Out: snapshots, plans, typed outcomes.

May not know
    pyspark, the cluster metadata, who leads. Pure modules (``snapshot_id``, ``policy``, ``start_offset``,
    ``messages``, ``state_machine``) do no I/O and know no clock.

Sentences of KIP-630 that have no counterpart on passive storage
    "Replicas will snapshot their log independent of each other" (Overview): one of them makes it, and the others
        fetch its bytes, as they do with the log: equal files can be compared, and a parted history is not asked.
    "The disk format for snapshot files will be the same as the version 2 of the log format" (Snapshot Format):
        the format is this log's own, Parquet, for the KIP's reasons: compressed, and damage is found. A control
        record batch is a row; BaseOffset and OffsetDelta count the snapshot's rows.
    The epoch in the file's name has 20 digits in the KIP's example (Snapshot Format); 10 here, as everywhere.
    "Copy the bytes ... to ... .checkpoint.part starting at file position Position" (Response Handling): files are
        written once, so each chunk is a file. "Atomically move": what has a name here cannot be moved; the
        verified bytes are staged once more, and named by an exclusive create. A snapshot of the metadata that is
        no larger than one chunk is copied whole.
    "The Controller and Metadata Cache will notify the Kafka Raft layer", and the other way (Overview; Interaction
        with the Kafka Controller and Metadata Cache): nothing waits to be notified. A frozen file is the
        notification, the next listing hears it; ``fetch`` hands its outcome to whoever ran it.
    "The follower will pause fetching of the log" (Handling Fetch Response): a follower fetches nothing by itself;
        the run that brings it the snapshot goes on with the log.
    "The local log will be truncated" (Handling Fetch Response): no file is cut. The log starts at the snapshot's
        end by a ``.local`` file, or, for the metadata, by the snapshot itself; what lies below is dead.
    "How voters grant votes and how candidates request votes" (Overview; Changes to Leader Election): nobody votes.
        A claimant goes on from the greatest (epoch, end offset) of a majority, snapshots counted; a clean leader
        of a topic comes from the ISR, an unclean one is who holds most, snapshots counted.
    "LastFetchedEpoch", "FetchOffset" in the fetch request (Snapshot Format; Changes to Leader Election), and
        DivergingEpoch in its response: whoever syncs has both listings, and looks at the follower's log under the
        leader's lineage. It ends where the two part ways; where that is below the log start, the answer is the
        snapshot. API keys, versions, tagged fields (Network Protocol): nothing is on a wire.
    ThrottleTimeMs (Response Schema): copies are throttled where they run, in ``engine``.
    "All of the live replicas (followers and observers)" (When to Increase the LogStartOffset): a driver is known
        to nobody, and not waited for; it loads the snapshot. ``engine.quorum.upkeep`` says who is live among the
        voters, and why the metadata log keeps one snapshot more than the KIP asks for.
    "The inter-broker protocol (IBP) will be increased" (Compatibility): there is one version.
    "This KIP is only implemented for ... __cluster_metadata" (Compatibility): for topics that ask for it, too.
    kafka.controller:type=KafkaController (Metrics): rows of ``Cluster.metrics``, with topic and partition.
    "The cleanup.policy of __cluster_metadata can only be read" and POLICY_VIOLATION for DeleteRecords (Topic
        configuration; When to Increase the LogStartOffset): configs and calls are ``engine``'s.
"""
