"""A cluster on empty brokers from the remote tier alone.

restore  the partitions, from a plan
plan     the content of the remote tier, and the cluster that it makes, from a restore point
drill    the same beside a living cluster, and compared with it
"""
