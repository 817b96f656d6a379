"""Upkeep: the jobs that keep a cluster's logs whole, short and in their places. From below:

    memory         what runs have done when, what failed in them, and what damage looks have found
    tiering        sealed segments -> the remote table (KIP-405); restore points
    verification   replicas and the remote against each other, and everything against its checksums
    retention      what leaves the log, and what is swept up behind it
    replication    replicate, merge, elect, reassign, bootstrap
    healing        damaged files are replaced; truncated records are found again
    snapshots      short logs of topics that are state, and of the metadata (KIP-630)
    restoring      a cluster from its remote tier alone
    maintenance    what of all this is due, as one job

An operation is its plan, its task and its row. All else is the frame, ``stratalog.engine.driver.run``:

    with execution.run("merge", dry_run=dry_run) as run:                     # measured
        works = plan(storage, image, topics, ...)                            # 1. pure: one work per partition
        for work, merged in run.each(merge_partition, works):                # 2. tasks, with progress and failures
            ...
        done = run.commit(metadata, command, by_partition)                   # 3. one commit, on the driver
        run.add(MergeRow(...) for ...)                                       # 4. typed rows: fields are columns
        run.settle((view, next_ms) for ...)                                  #    what maintain need not look at
    run.total("segments")
    return run.report()                                                      # 5. report, and the event made of it

With a budget ``run.in_turns`` takes the place of ``run.each``. An operation that calls another one takes over its
failures and notes (``run.absorb``). In a dry run the works say so to their tasks, which then change nothing, and
``run.commit`` only asks for the answers. A task creates files, those of ``retention`` also delete what no log can
need again; each is harmless when run twice. Whatever commits, to the metadata or to the remote table, runs on the
driver. A room imports only those before it.
"""
