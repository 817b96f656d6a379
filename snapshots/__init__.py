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
    Fetch, answered with a SnapshotId   ``discover`` of ``fetch.fetch_snapshot``: for a topic
                                        ``stratalog.engine.replication``, for the metadata
                                        ``stratalog.engine.quorum``
    FetchSnapshot                       ``fetch``: the leader's side ``Source``, the follower's ``fetch_snapshot``
    <SnapshotId>.checkpoint.part        one write-once file a chunk: ``chunks``
    Kafka Controller, Metadata Cache    a ``state_machine``, and who holds it

The invariant
    A name is given to whole and verified bytes only, and never again. Nothing is deleted below a log start before
    the snapshot that ends there is frozen; chunks go when the snapshot that they were is.

In and out
    In: stores, listings, numbers that the layers above have gathered. Out: snapshots, plans, typed outcomes.

May not know
    pyspark, the cluster metadata, who leads. Pure modules (``snapshot_id``, ``policy``, ``start_offset``,
    ``state_machine``) do no I/O and know no clock.

Sentences of KIP-630 that have no counterpart on passive storage: ``docs/kips.md``.
"""

if __name__ != "stratalog.snapshots":
    raise ImportError(
        'import "stratalog.snapshots", not "snapshots": under two names each module would be loaded twice'
    )
