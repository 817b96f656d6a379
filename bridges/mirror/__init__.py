"""Topics of a Kafka cluster, record for record and offset for offset, in logs of this one.

source         the questions of a mirror to the cluster that it mirrors; and its findings there
kafka_source   that by ``confluent-kafka`` (the extra ``kafka``), without a JVM
configs        the topic's configs here, which mean the same as those there
rows           records as columns, and with the gaps as rows of a log
partitions     one run's state of each partition: where it is, and what waits to be appended
progress       the progress of a run, for a bar
bulk           many partitions at once, by Spark's executors, where much is new
options        how a mirror is to work
topics         topics made here, and whether they are still those of the source
catch_up       the source read, and the records appended, by threads or in bulk
mirror         the operation: these in their order, and log starts moved; and its end
group_offsets  consumer groups go on here where they stopped there
compare        a topic there and here: every record, and at which offsets they differ
compared       columns of both sides, beside each other

A mirrored topic has the config ``mirror.source``, and nobody else appends to it (``engine.config.mirrored``).

Exactly once
    The place in the source is the log's end, and nothing else remembers it. A piece begins at the log end that was
    looked at, is appended there or nowhere (``ProducerAppend.base_offset``), and the source says the same of an
    offset whenever it is asked. So any number of mirrors, dead ones and slow ones among them, make one copy. The
    producer of the pieces has the source's leader epoch as its epoch: a mirror that still reads an older leader is
    fenced, and the end of the log says under which epoch its last record was written there.

Gaps
    Committed records come with offset, timestamp, key, value and headers. An offset that has no such record there
    (but a marker, a record of an aborted transaction, or one that was compacted away) is a row with ``control`` =
    ``records.GAP``.
"""
