"""Storage roots as brokers.

brokers    the probe of every root at the start of a run, and what follows: fenced, registered, unfenced
bring_up   a root is formatted and registered
fence      brokers out of service by hand, back, and gone for good
"""
