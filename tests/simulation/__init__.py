"""The product's own code, run by a deterministic scheduler; every call of a store is a point of interleaving.

One seed determines a cluster, the operations of its drivers, the faults, and the schedule. After every step that
changed a store the invariants of the protocol (section 6) are checked against a naive twin: per partition one list
in memory. When the faults are over, a lone driver has to repair everything.

    configuration  the meaning of a seed: sizes, operations, faults
    scheduler      drivers are greenlets; who goes on, and what becomes of the call
    strategies     uniform, priorities with change points, bursts; long pauses
    roots, stores  the truth of each broker, and a driver's view of it; requests that are on their way
    faults         what may happen to calls and roots, and the bound within which the promises hold
    remote         the table of the remote tier, in memory
    delta          a Delta table whose log is objects of a simulated store
    ..._tables     the tables of published snapshots on it, and a program that rewrites them
    published      P1 to P4: what these tables list
    world          a cluster on such stores; drivers as the product's own contexts
    actions        what drivers do: one line for each operation of the product; I10
    oracle         the naive twin, and what is committed in the metadata
    invariants     I1 to I7, I9
    damage         flipped bits; I8
    transacting    transactions: what drivers do, and what readers of committed records must see
    ending         the lone driver
    running        one seed, many seeds
    trace, shrink  a failing seed as a person reads it, and with less in it
    exhaustive     small configurations, every interleaving
    variants       steps of the protocol left out
    mutations      which sentence each of them is: each must fail
    ..._of_bytes   the same of what vouches for bytes, and of the checks

The package uses no time, hash order, or threads: the same seed gives the same trace.
"""
