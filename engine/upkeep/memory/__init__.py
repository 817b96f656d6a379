"""The state that upkeep stores between runs, by ``stratalog.engine.driver.stored_schedule``:

    trouble     failures of an operation's last run, damage of the last check, and the time since when
    times       when each step last began, all trouble, and partitions without work
    kept_times  loads these at the start of a run, and stores changes; all writes use it
    looks       results of checks of partitions
    runs        failures of single operations, run by hand or by a scheduler

Runs of ``maintain``, and of its steps one by one, of ``verify`` and ``heal`` write it; ``health`` reads it.
"""
