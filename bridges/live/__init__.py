"""One relation over a mirrored topic and its source: history from the log here, the newest records from Kafka.

boundary   the offset where the log here ends and the source continues; whether the two are one history
plan       a read of both, pinned by offsets
frame      the plan as a DataFrame
source     the end of each batch of a stream
stream     a stream over both, whose batches are such frames

The boundary of a partition is the end of its log here when the plan is made. A mirror that runs meanwhile moves
that end, but not the planned offsets. So there is no gap, and no record appears twice. If the source has deleted
records since, a new plan finds them here.

Records beyond the boundary come through the mirror's own source (librdkafka, in tasks), not by Spark's Kafka
connector. The tasks use the mirror's configs, isolation, decoder and check of leader epochs, so a row is the same
before and after it is mirrored, and no jar is needed. Only committed records are read, because a mirror copies
only committed records.
"""
