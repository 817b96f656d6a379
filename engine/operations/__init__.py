"""The jobs as functions: plan, run tasks keyed by partition, commit in batches, report.

    append      a DataFrame -> acknowledged offsets (acknowledge: its second half, on the driver)
    replicate   leaders to followers, the high watermark, the expansion of the ISR (in_sync: its proposals)
    merge       small appends into segments
    tier        sealed segments -> the remote table (KIP-405's Remote Log Manager)
    retain      local and total retention, and what may be deleted after its delay (retain_tasks: by leaders and
                replicas; retain_remote: of the remote tier)
    vacuum      litter, in the remote tier and on the brokers (sweep: folders on brokers that nobody owns)
    brokers     the probe of every root at the start of a run, and what follows: fenced, registered, unfenced
    fence       brokers out of service by hand, back, and gone for good
    snapshot    short logs of topics with cleanup.policy=snapshot (snapshot_partition: made on the leader;
                snapshot_spread: copied, deleted; read_snapshot: as a DataFrame, as a table, its metrics)
    groups      what consumer groups have committed, and their lag (state_log: the engine's own topics)
    stream_source  a topic as the source of a stream: triggers and batches on the driver (stream_read: in tasks;
                stream_progress: a group is told), lag_metrics of all groups
    transact    a transaction as its producer sees it (transactions: transactional ids and what is decided of them;
                markers: its end in each partition; transaction_admin: list, finish, abort, find what hangs)
    bootstrap   format and register a broker's root, and bring its replicas into the ISR (KIP-1023)
    verify      replicas and the remote against each other (verify_structure, _registers, _remote: without records;
                verify_content: every byte)
    heal        damaged files of brokers replaced by verified copies (heal_plan: which; heal_files: how)
    history     what replicas have discarded and still hold
    recover     what was truncated, exported
    elect       preferred leaders, leaders by hand, unclean ones (candidates: who could lead, and at what loss)
    reassign    replicas to other brokers (reassignments: how far those in progress are)
    describe    brokers, topics, partitions as tables
    read        a range of a topic as a DataFrame; ListOffsets
    while_it_changes  a look is taken again, while others change what is looked at
    remote_logs what the remote tier says of topics, several at once; while it is down not by each

Each takes a ``Context``. Tasks create files, those of ``retain`` also delete what no log can need again; all are
harmless when run twice. Whatever commits, to the metadata or to the remote table, runs on the driver.
"""
