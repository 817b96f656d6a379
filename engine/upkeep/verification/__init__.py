"""Compares replicas and the remote tier with each other, and checks everything against its checksums.

verify                       one run
audit                        the steps for some partitions, also used by heal
structure, registers,        checks without reading records
snapshots, remote, metadata
content                      checks every byte
findings                     findings as values; compares the copies of one file, which must be equal
"""
