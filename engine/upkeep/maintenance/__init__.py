"""Maintenance: one job that does what is due, so that nothing else has to be scheduled.

    times      what was done last when, as it is kept for the next run
    scrub      every byte once in scrub.interval.ms: a deep verify in pieces, which heals what it finds
    maintain   the steps, their intervals, and a run within a budget

A step is another operation of ``stratalog.engine.upkeep``, over all topics: it is as safe beside others, and when
it is run twice, as that is. Nothing here writes to a log.
"""
