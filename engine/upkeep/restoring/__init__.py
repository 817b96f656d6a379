"""Restores a cluster to empty brokers from the remote tier alone.

restore  restores the partitions, by a plan
plan     the content of the remote tier, and the cluster that a restore builds from it and a restore point
drill    restores to a temporary folder, and compares the result with the running cluster
"""
