"""Maintenance: one job that does what is due, so that nothing else has to be scheduled.

    sweep      one look at the brokers for all partitions, which tells where anything has changed
    due        when a step is due, and for which partitions
    budget     seconds, bytes and requests, asked between pieces of work
    scrub      every byte once in scrub.interval.ms: a deep verify in pieces, which heals what it finds
    maintain   the steps, and a run

A step is another operation of ``stratalog.engine.upkeep``, over all topics: it is as safe beside others, and when
it is run twice, as that is. Nothing here writes to a log.
"""
