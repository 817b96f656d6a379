"""A deterministic simulation of the metadata quorum, in which every storage call of every driver is a point of
interleaving.

One seed determines the voters, the operations of drivers, the faults, and the schedule. A naive twin follows the
commits; after every call that changed a voter, and every answer of the log, the invariants are checked (protocol
section 6: I6, I7). Scheduler, roots and shrinking are those of ``tests.simulation``, which runs the whole engine;
this package runs only the quorum, and a run takes some hundredths of a second.

    configuration  the meaning of a seed: sizes, operations, faults
    schedule       the choice of the next process; zombies, slow voters, calls that take effect after their error
    stores         a process's view of a root
    world          the truth, and processes on it: the product's own log and client
    actions        the operations of processes, one line for each
    faults         the faults of roots, and the bound within which the promises hold
    history        the naive twin: the commits, the answers, and the files that a voter must keep
    running        one seed: the faulty part, the serial part, and the operator who repairs everything
    remembering    a cache, so that a process decodes the same bytes once
    variants       variants of the protocol that omit a step
    mutations      the sentence that requires each step: each variant must fail
    crashing       one fault at every call of an operation, in turn

``python -m tests.quorum --seeds 20000`` runs many seeds; ``--seed 7`` alone shows the trace of one.
"""
