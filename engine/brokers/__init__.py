"""Storage roots as brokers.

    probe      checks every root at the start of a run, then fences, registers or unfences brokers
    bring_up   formats and registers roots
    format     formats a whole cluster
    fence      fences, unfences and removes brokers by hand

These operations are the lowest above the driver, because all other operations begin with a probe.
"""
