"""Health: the problems of a cluster that need an operator, when each was first found, and the command that fixes
it. The modules, lowest first:

    finding      one problem as data; command lines; the report
    sight        the observed state: metadata, roots, one listing of each broker, stored state
    brokers      roots, folders, voters
    partitions   leaders, the ISR, lag, damage, lost logs
    remote       failing uploads, overdue segments, tables changed by other programs
    overdue      overdue compactions and deletions
    state        consumer groups and transactions
    upkeep       steps of ``maintain`` that failed, or have not run
    health       the operation; effects of an unreachable broker become part of its finding

A health check costs as much as a sweep of ``maintain``: one listing of each broker. In addition, it reads only
suspicious files, the tables of tiered topics, and internal partitions that have records. Everything else is
computed from the observed state. A health check writes nothing. Whether a root accepts writes is inferred from the
permissions and mounts of folders, and from the failures of the last ``maintain``.

Only ``page`` and ``cluster`` use this package.
"""
