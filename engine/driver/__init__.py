"""A driver: one process's connection to a cluster, and the parts that every operation uses.

    opening               opens a cluster from its file: checks the owner of each root, and makes the ports
    storage               port: the brokers' roots, the remote tier, and the cluster file that names both
    execution             port: where tasks run, the clock, progress, and the cost of a block of work
    memory                port: producers, caches and log ends, kept from one operation to the next
    report                the result of an operation: rows, failures, totals
    deletions             failures that come from the deletion of a topic
    folding               the rows of a report, shortened for people
    run                   one run of an operation: its tasks, commits and rows, and its report
    estimate              the price of a run's requests to object stores, in the report of a dry run
    planned               collects that estimate
    tasks                 the runner of an operation's tasks, and the listener to their progress
    figures               the figures of a report that go into its event
    origin                the user, machine, job and run of this process; whether it writes events
    running               the operation that a thread runs, and its heartbeat in the log
    metrics               snapshot metrics that this driver has measured
    state_cache           the content of the engine's own topics that this driver has read
    plain_values          values of records as JSON values
    fetching, record_reader   the threads of fetches, and their cache of records
    stored_schedule       the times of earlier runs of a job, as hints for its next run
    remote_quota          the bytes per second that this driver may copy to and fetch from the remote tier
    compared_clocks       compares this driver's clock with those of the storage, before deletion by time
    known_image           the last known metadata, for read-only operations
    turns                 rounds of work that a budget may end at any point
    while_it_changes      retries a read that concurrent changes disrupted

Above the metadata, the quorum and the data plane; below every operation. The caller passes in the runner of tasks:
this package itself only runs threads. An operation takes only the ports that it needs, such as the metadata
client; a function that plans takes the image and configs.
"""
