"""Maintenance: one job that runs all due steps, so that no other job must be scheduled.

    sweep      one listing of each broker, to find the partitions that have changed
    due        the time at which each step is due, and the partitions for which it is due
    budget     limits of seconds, bytes and requests, checked between pieces of work
    maintain   the steps, and a run; the scrub, a deep verify in pieces that heals damage

Each step is an operation of another package of ``stratalog.engine.upkeep``, over all topics. Like the operation,
the step may run concurrently or twice. This package itself never writes to a log.
"""
