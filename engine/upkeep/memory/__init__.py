"""The state that upkeep stores between runs, by ``stratalog.engine.driver.stored_schedule``:

    trouble     the failures of an operation's last run, the damage that the last check found, and the times when
                these were first found
    times       the time when each step last began, all trouble, and the partitions without work kept_times  loads
    the state at the start of a run, and stores changes, such as the results of checks; all writes
                use this module
    runs        the failures of operations that run alone, by hand or by a scheduler

``maintain``, each of its steps when run alone, ``verify`` and ``heal`` write the state; ``health`` reads it.
"""
