"""Compares replicas and the remote tier with each other, and everything with its checksums.

verify                       one run
audit                        the steps for some partitions, also used by heal
structure, registers,        checks without reading records
snapshots, remote, metadata
content                      checks every byte
findings                     findings as values; copies of one file must be equal
"""
