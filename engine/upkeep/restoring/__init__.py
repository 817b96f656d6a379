"""A cluster on empty brokers from the remote tier alone.

restore  the partitions, from a plan
plan     what the remote tier holds, and what that comes to; it goes by a restore point
drill    the same beside a living cluster, and compared with it
"""
