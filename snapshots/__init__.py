"""Snapshots: states that replace the prefix of a log, on disk and for readers (KIP-630).

Purpose
    A log that is folded into a state (the cluster's metadata, committed offsets, the latest record of every key)
    need not be kept: a snapshot of the state replaces the records ``[0, end offset)``. This package names, writes,
    verifies and fetches snapshots, and decides when to take one, where a log starts, and which ones to delete.

KIP-630's pieces, and their counterparts here
    SnapshotId                          ``snapshot_id``; the file ``<end offset>-<epoch>.checkpoint``
    snapshot format, control records    ``layout``, ``writer``, ``reader``: a data file of the log
    when to snapshot                    ``policy`` (with KIP-876's interval)
    LogStartOffset, deletion            ``start_offset``
    Fetch, answered with a SnapshotId   ``discover`` of ``fetch.fetch_snapshot``: for a topic
                                        ``stratalog.engine.replication``, for the metadata
                                        ``stratalog.engine.quorum``
    (nothing)                           ``erasure``: snapshots without the keys that were erased
    FetchSnapshot                       ``fetch``: the leader's side ``Source``, the follower's ``fetch_snapshot``
    <SnapshotId>.checkpoint.part        one write-once file per chunk: ``chunks``
    Kafka Controller, Metadata Cache    a ``state_machine``, and its owner

The invariant
    Only complete and verified bytes get a name, and only once. Nothing is deleted below a log start before the
    snapshot that ends there is frozen; chunks are deleted once their snapshot is frozen.

In and out
    In: stores, listings, numbers gathered by the layers above. Out: snapshots, plans, typed outcomes.

``docs/kips.md`` lists the sentences of KIP-630 that have no counterpart on passive storage.
"""

if __name__ != "stratalog.snapshots":
    raise ImportError(
        'import "stratalog.snapshots", not "snapshots": under two names each module would be loaded twice'
    )
