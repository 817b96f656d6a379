"""Restores a cluster to empty brokers from the remote tier alone.

restore  restores the partitions, by a plan
plan     the content of the remote tier, and the cluster that a restore makes of it, from a restore point
drill    a restore beside the living cluster, and a comparison of the two
"""
