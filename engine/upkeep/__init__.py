"""Upkeep: the jobs that keep a cluster's logs whole, short and in their places. From below:

    memory         what runs have done when, what failed in them, and what damage looks have found
    tiering        sealed segments -> the remote table (KIP-405); restore points
    verification   replicas and the remote against each other, and everything against its checksums
    retention      what leaves the log, and what is swept up behind it
    replication    replicate, merge, elect, reassign, bootstrap
    healing        damaged files are replaced; truncated records are found again
    snapshots      short logs of topics that are state, and of the metadata (KIP-630)
    restoring      a cluster from its remote tier alone
    maintenance    what of all this is due, as one job

Each is *plan, tasks, commit, report*, and takes a ``Context``. Tasks create files, those of ``retention`` also
delete what no log can need again; all are harmless when run twice. Whatever commits, to the metadata or to the
remote table, runs on the driver. A room imports only those before it.
"""
