"""The memory of upkeep from run to run, as ``stratalog.engine.driver.stored_schedule`` keeps it:

    trouble     what failed in the last run of an operation, or was found damaged in the last look, and since when
    times       when a step was last begun, and all trouble; what was settled
    kept_times  these, loaded when a run begins, and kept while it goes on: the one way to write
    looks       what a look at partitions has found
    runs        what failed in an operation that a person, or a scheduler, has run

Runs of ``maintain``, and of its steps one by one, of ``verify`` and ``heal`` write it; ``health`` reads it.
"""
