"""Export: writes records of this cluster's topics to topics of a Kafka cluster, the target.

target         the interface to the target cluster
kafka_target   its implementation by ``confluent-kafka`` (the extra ``kafka``), without a JVM
kafka_groups   offsets of consumer groups in the target
journal        the entries of an export's journal, and its state
options        the options of an export
parts          the state of each partition in a run: position, due pieces, pace
export         the operation: creates topics, writes pieces, reports
kept           pieces at the same offsets
offset_map     the map from the offsets here to those of the target, as a Delta table
group_offsets  committed offsets of consumer groups

An export has a name. The journal of an export is the topic ``stratalog-export.NAME`` in the target. The same name
is the transactional id of the export. Only the journal stores the progress of an export.

Exactly once, at new offsets
    A piece of records is one transaction, which includes an entry of the journal with the piece's partition and
    offsets. So the target has both the piece and the new position, or neither. A run begins with
    ``InitProducerId``, which ends an open transaction of an earlier run and fences that run. Then it reads the
    committed entries of the journal, and continues at the last position. So any number of runs, including killed
    and slow ones, make only one copy for readers of committed records. The position is not a consumer group's
    offset, because such offsets expire (``offsets.retention.minutes``).

Exactly once, at the same offsets
    An aborted transaction would use up offsets permanently. So an idempotent producer without transactions writes
    the records. The position is the end of the target's log, to which nothing else may write. Before a piece is
    written, the journal gets an entry with its offsets. So a fenced run begins no other piece, and only records of
    that piece may still be in flight. If the log ends within the piece, the next run waits until these records
    have arrived, or have timed out at the fenced producer (``settle_s``). One case remains. A run is paused after
    it has written bytes to its socket, and before these are sent. The pause is longer than ``settle_s``, and the
    run continues while the next run works. Then records get wrong offsets. Both runs detect this, by the broker's
    answer or by the end of the log, and end with ``RECORDS_DIFFER``; ``compare`` names the records.

Gaps, at the same offsets
    An offset without a committed record here must be used up in the target. The marker of a transaction uses one
    offset. So a gap of one offset becomes a transaction without records, and a gap of N offsets becomes an aborted
    transaction with N - 1 records. The transactional producer writes both, so fencing also covers gaps.
"""
