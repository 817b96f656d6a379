"""Maintenance: one job that runs all due steps, so that no other job must be scheduled.

    sweep      one listing of each broker, which shows the partitions that have changed
    due        when each step is due, and for which partitions
    budget     limits of seconds, bytes and requests, checked between pieces of work
    scrub      a deep verify in pieces, once in scrub.interval.ms, which heals damage
    maintain   the steps, and a run

A step is another operation of ``stratalog.engine.upkeep``, over all topics. It is as safe to run concurrently or
twice as that operation. Nothing here writes to a log.
"""
