"""The memory of upkeep from run to run, as ``stratalog.engine.driver.stored_schedule`` keeps it:

    trouble     what failed in the last run of a step, or was found damaged in the last look, and since when
    times       when a step was last begun, and all trouble; what was settled
    kept_times  these, loaded when a run begins, and kept while it goes on
    looks       what a look at partitions has found, as it is put there

Runs of ``maintain``, ``verify`` and ``heal`` write it; ``health`` reads it.
"""
