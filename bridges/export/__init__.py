"""Export: writes records of this cluster's topics to topics of a Kafka cluster, the target.

target         the interface to the target cluster
kafka_target   its implementation by ``confluent-kafka`` (the extra ``kafka``), without a JVM
kafka_groups   offsets of consumer groups in the target
journal        the entries of an export's journal, and its state
options        the options of an export
parts          the state of each partition in a run: position, due pieces, pace
export         the operation: creates topics, writes pieces, reports
kept           pieces at the same offsets
offset_map     the map from the offsets here to the offsets in the target, as a Delta table
group_offsets  committed offsets of consumer groups

An export has a name. Its journal is the topic ``stratalog-export.NAME`` in the target; the topic's name is also
the transactional id of the export. Only the journal stores the progress of an export.

Exactly once, at new offsets
    A piece of records is one transaction. The transaction includes an entry of the journal with the piece's
    partition and offsets. So the target has both the piece and the new position, or neither of them. A run begins
    with ``InitProducerId``, which ends an open transaction of an earlier run and fences that run. Then it reads
    the committed entries of the journal, and continues at the last position. So any number of runs, even killed
    and slow runs, make one copy for readers of committed records. The position is not the offset of a consumer
    group, because such offsets expire (``offsets.retention.minutes``).

Exactly once, at the same offsets
    An aborted transaction would use up offsets permanently. So an idempotent producer without transactions writes
    the records. The position is the end of the target's log, to which nothing else may write. Before a piece is
    written, an entry with the piece's offsets is written to the journal. So a fenced run begins no further piece,
    and only records of that piece may still be in flight. If the log ends within the piece, the next run waits
    until these records have arrived, or timed out at their producer (``settle_s``). One case remains: a run is
    paused after it has written bytes to its socket, but before they are sent. If the pause is longer than that
    time, and the run continues while the next run works, records get wrong offsets. Both runs detect the wrong
    offsets by the broker's answer or by the end of the log, and end with ``RECORDS_DIFFER``. ``compare`` names the
    records.

Gaps, at the same offsets
    An offset without a committed record here must be used up in the target. The marker of a transaction uses one
    offset. So a gap of one offset becomes a transaction without records, and a longer gap becomes an aborted
    transaction whose number of records is one less than the gap. These transactions have the transactional id of
    the export, so fencing covers gaps.
"""
