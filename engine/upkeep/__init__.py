"""Upkeep: the jobs that keep a cluster's logs intact, short and in the right tier. From below:

    memory         the stored state of runs: times, failures, and damage that was found
    tiering        sealed segments -> the remote table (KIP-405); restore points
    verification   compares replicas and the remote tier, and every byte with its checksum
    retention      advances log starts, and deletes files that nothing uses
    replication    replicate, merge, compact, elect, reassign, bootstrap
    erasing        erases the records of keys for good, and proves it
    healing        replaces damaged files; finds and exports truncated records
    snapshots      shortens the logs of topics with state, and of the metadata (KIP-630)
    restoring      rebuilds a cluster from its remote tier
    maintenance    runs the due steps, as one job

An operation consists of its plan, its task and its row. The rest is the frame, ``stratalog.engine.driver.run``:

    with execution.run("merge", dry_run=dry_run) as run:                     # measured
        works = plan(storage, image, topics, ...)                            # 1. pure: one work per partition
        for work, merged in run.each(merge_partition, works):                # 2. tasks, with progress and failures
            ...
        done = run.commit(metadata, command, by_partition)                   # 3. one commit, on the driver
        run.add(MergeRow(...) for ...)                                       # 4. typed rows: fields are columns
        run.settle((view, next_ms) for ...)                                  #    what maintain need not look at
    run.total("segments")
    return run.report()                                                      # 5. report, and the event made of it

With a budget, use ``run.in_turns`` instead of ``run.each``. An operation that calls another one adds its failures
and notes to its own (``run.absorb``). In a dry run, tasks change nothing, and ``run.commit`` only returns the
answers. Tasks create files; those of ``retention`` also delete files that no log needs. A task may run twice
without harm. Commits, to the metadata or to the remote table, run on the driver. A package imports only packages
before it.
"""
