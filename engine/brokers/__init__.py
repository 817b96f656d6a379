"""Storage roots as brokers.

probe      every root at the start of a run, and what follows: fenced, registered, unfenced
bring_up   a root is formatted and registered
format     ... those of a whole cluster, which begins with it
fence      brokers out of service by hand, back, and gone for good

The first operations above the driver: all others begin with a probe.
"""
