"""Replicas and the remote against each other, and everything against its checksums.

verify                       one run of it
audit                        the steps, of some partitions: also a heal's
structure, registers,        without reading records
snapshots, remote, metadata
content                      every byte
findings                     what was found, as values; copies of one file must be equal
"""
