"""Health: the problems of a cluster that need an operator, since when, and the command that fixes each. From
below:

    finding      one problem as data; command lines; the report
    sight        the observed state: metadata, roots, one listing of each broker, stored state
    brokers      roots, folders, voters
    partitions   leaders, the ISR, lag, damage, lost logs
    remote       failing uploads, overdue segments, tables changed by other programs
    expiry       overdue deletions
    state        consumer groups and transactions
    cause        effects of an unreachable broker become part of its finding
    upkeep       steps of ``maintain`` that failed, or have not run
    health       the operation

The cost is that of a sweep of ``maintain``: one listing of each broker. Besides that, health only reads suspicious
files, the tables of tiered topics, and internal partitions that have records. Everything else is computed from the
observed state. Health writes nothing, so it judges whether a root accepts writes by the permissions and mounts of
folders, and by the failures of the last ``maintain``.

Only ``page`` and ``cluster`` use this package.
"""
