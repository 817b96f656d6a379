"""A cluster on empty brokers from the remote tier alone.

restore  the partitions, from a plan
plan     what the remote tier holds, and what that comes to
point    descriptions of the cluster in the remote tier, which a plan goes by
drill    the same beside a living cluster, and compared with it
"""
