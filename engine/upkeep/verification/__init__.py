"""Compares replicas and the remote tier with each other, and checks everything against its checksums.

verify                         one run; checks the metadata log
audit                          the steps for some partitions, also used by heal
structure, registers, remote   checks without reading records
content                        checks every byte
findings                       findings as values; compares the copies of one file, which must be equal
"""
