"""Upkeep: jobs that keep a cluster's logs intact, short and in the right tier. A package imports only the packages
listed before it:

    memory         the stored state of earlier runs: times, failures and damage
    tiering        sealed segments -> the remote table (KIP-405); restore points
    verification   compares replicas and the remote tier, and checks every byte against its checksum
    retention      advances log starts, and deletes files that nothing uses
    replication    replicate, merge, compact, elect, reassign, bootstrap
    erasing        permanently erases the records of keys, and proves the erasure
    healing        replaces damaged files; finds and exports truncated records
    snapshots      shortens the logs of topics with state, and of the metadata (KIP-630)
    restoring      restores a cluster from its remote tier
    maintenance    runs the due steps, as one job

An operation defines a plan, a task and a row. ``stratalog.engine.driver.run`` does the rest:

    with execution.run("merge", dry_run=dry_run) as run:                     # measured
        works = plan(storage, image, topics, ...)                            # 1. pure: one work per partition
        for work, merged in run.each(merge_partition, works):                # 2. tasks, with progress and failures
            ...
        done = run.commit(metadata, command, by_partition)                   # 3. one commit, on the driver
        run.add(MergeRow(...) for ...)                                       # 4. typed rows: fields are columns
        run.settle((view, next_ms) for ...)                                  #    what maintain may skip
    run.total("segments")
    return run.report()                                                      # 5. report, and its event

With a budget, use ``run.in_turns`` instead of ``run.each``. An operation that calls a second operation adds the
failures and notes of the second operation to its own (``run.absorb``). In a dry run, tasks change nothing, and
``run.commit`` only returns the answers. Tasks create files; the tasks of ``retention`` also delete files that no
log needs. A task may run twice without harm. The driver makes all commits to the metadata and to the remote table.
"""
