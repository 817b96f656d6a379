"""The tier of a Kafka cluster (KIP-405), read from its bucket or folder, without work for the brokers.

    tier                      ``KafkaTier``: plans a read, and returns a DataFrame or Arrow
    segment, segment_states   the uploads in ``__remote_log_metadata``; ``fields`` (its bytes)
    metadata_log              that topic, from the files of its log
    brokers                   that topic, and the current history, from running brokers
    layout                    the interface to a plugin's layout of segments; ``local``, ``aiven`` (with
                              ``aiven_manifest`` and ``aiven_keys``)
    lineage, plan             the segments of the log, and the unclear offsets
    indexes, times            Kafka's indexes of a segment; bounds by time
    committed                 aborted transactions, and transactions that are open at the end of the tier
    batches, columns          checked record batches (``checksum``); their records as columns
    tasks                     the plan of a read: parts of segments for tasks, and their rows
    mirrored                  the tier as a source of ``cluster.mirror``
    options                   ``KafkaTierOptions``: the arguments of a tier, for mirrors and commands
    reading                   a task's read of a range of a segment

Nothing here writes. Functions that decode untrusted bytes raise only stratalog's errors, and use bounded memory.
"""
