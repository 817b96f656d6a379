"""A driver: one process's hold on a cluster, and what every operation works with.

    opening               from a cluster file to a context; whose the roots are, and the metadata log on them
    context               stores, metadata, clock, runners and caches, as they are passed to every operation
    report                what an operation tells: rows, failures, totals; folding: its rows as people read them
    run                   the frame of an operation: tasks, commits and rows of one run, and its report
    tasks                 what runs an operation's tasks, and who listens to their progress
    figures               what a report says of the work done, for its event
    origin                the user, machine, job and run of this process; whether it leaves events
    running               the operation that a thread is in the middle of, and its heartbeat in the log
    metrics               what this driver has measured of snapshots
    state_cache           the engine's own topics, as far as this driver has read them
    plain_values          values of records as JSON has them
    begun_sequences, unnamed_producers, transactional_producers   this driver, as the producer of appends
    log_ends              the ends of logs that it has appended to, from which its next appends go on
    remote_ends           the logs that it has compared with their remote ends
    fetching, record_reader   the threads of its fetches, and what they have read
    stored_schedule       what a job did when, for its next run: hints
    remote_quota          what it may copy and fetch of the remote tier in a second
    compared_clocks       this driver's clock beside those of the storage: whether anything is removed by time
    known_image           the metadata as last seen
    turns                 work that a budget may end at any place
    while_it_changes      a look is taken again, while others change what is looked at

Above the metadata, its quorum and the data plane, of which it holds one of each; below every operation. The runner
of tasks is passed in: it knows of threads alone.
"""
