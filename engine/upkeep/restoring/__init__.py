"""Restores a cluster to empty brokers from the remote tier alone.

restore  restores the partitions, by a plan
plan     the content of the remote tier, and the cluster that a restore makes of it, from a restore point
estimate the requests that a dry run leaves out
drill    restores to a temporary folder, and compares with the living cluster
"""
