"""Health: what of a cluster needs a person, since when, and the command that mends it. From below:

    finding      one thing that is wrong, as data; commands; the report of all of them
    sight        one look at the cluster: metadata, roots, one listing of each broker, what is remembered
    brokers      roots, folders, voters
    partitions   leaders, the ISR, lag, damage
    lost         logs that are gone
    remote       failing uploads, what waits for the remote tier, tables that others have written to
    expiry       what should have left the log
    state        consumer groups and transactions
    cause        what hangs on a broker that is away is part of its finding
    upkeep       steps of ``maintain`` that failed, or have not run
    health       the operation

The look costs what a sweep of ``maintain`` costs: a listing of each broker as a whole. Further reads are only of
what looks suspicious there, of tiered topics' tables, and of those partitions of the engine's own topics that hold
anything. Everything but that is a function of the look. Nothing is written: so whether a storage takes writes is
told by rights and mounts of folders, and by what failed when ``maintain`` last tried.

``page`` and ``cluster`` may ask this, and nothing below knows of it.
"""
