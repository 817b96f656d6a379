"""Mirror: copies topics of a Kafka cluster, the source, with the same records at the same offsets.

source         the interface to the source cluster
kafka_source   its implementation by ``confluent-kafka`` (the extra ``kafka``), without a JVM
configs        the configs of a mirrored topic, from those of the source
rows           records as columns; records and gaps as rows of a log
partitions     the state of each partition in a run: position, waiting records
progress       the progress of a run, for a bar
bulk           many partitions in parallel, by Spark's executors, if there are many new records
side_by_side   several tasks in one partition, for a source with parts that can be read separately (its tier)
options        the options of a mirror
renamed        topics whose name differs from that in the source
topics         creates topics, and checks that they are still the source's topics
catch_up       reads the source and appends, by threads or in bulk
mirror         the operation, and the end of a mirror
group_offsets  committed offsets of consumer groups
compare        compares every record of a topic on both sides
key_places     whether keys are where the topic's partitioner sends them
compared       the comparison of columns
one_sided      records that compaction has removed from one side only

A mirrored topic has the config ``mirror.source``, and only mirrors append to it (``engine.config.mirrored``).

Exactly once
    The position in the source is the end of the mirrored log, and is stored nowhere else. A piece is appended
    exactly at the log end, or not at all (``ProducerAppend.base_offset``), and the source always returns the same
    record for an offset. So any number of mirrors, even killed and slow mirrors, make one copy. The producer of
    the pieces has the source's leader epoch as its epoch. So a mirror that still reads from an older leader is
    fenced. The end of the log has the epoch that the source has for the last record.

Gaps
    Committed records come with offset, timestamp, key, value and headers. An offset without such a record in the
    source (a marker, a record of an aborted transaction, or a record that was compacted away) is a row with
    ``control`` = ``records.GAP``.
"""
