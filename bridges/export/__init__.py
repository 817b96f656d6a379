"""Records of topics here, in topics of a Kafka cluster: the way out.

target         the questions and orders of an export to the cluster that it writes to; and its findings there
kafka_target   that by ``confluent-kafka`` (the extra ``kafka``), without a JVM
kafka_groups   offsets of consumer groups there
journal        what an export has written, as entries of a topic there, and the state that they add up to
options        how an export is to work
parts          one run's state of each partition: where it is, the pieces that are due, at which pace
export         the operation: topics made, pieces written, reports
kept           pieces that are written at the offsets that they have here
offset_map     offsets here as offsets there; and that map as a Delta table
group_offsets  consumer groups go on there where they stopped here

An export has a name, and by it one topic there, its journal (``stratalog-export.NAME``), and one transactional id,
which is called the same. Nothing here remembers how far an export has come.

Exactly once, at new offsets
    A piece of records is a transaction of that transactional id, and an entry of the journal is part of it: which
    offsets of which partition these are. So a piece and the place behind it are both there, or neither is. A run
    begins by ``InitProducerId``: it ends the transaction that an earlier run has left, and from then on nothing of
    that run is committed. Then it reads the journal, as committed records only, and goes on at the place that it
    tells. Any number of runs, dead ones and slow ones among them, make one copy for a reader of committed records.
    The place is no offset of a consumer group, for these expire (``offsets.retention.minutes``).

Exactly once, at the same offsets
    A transaction that is given up takes offsets, and they are lost for good. So the records are written by an
    idempotent producer without transactions; the place is the end of the log there, which nobody else writes to.
    Before a piece is written, its offsets are an entry of the journal: a run that was fenced begins no further
    piece, and its successor knows what may be under way: nothing beyond that piece. Where the log ends inside of
    it, the successor waits until what is under way has arrived or timed out at its producer (``settle_s``).
    One case is left: a run was stopped between handing bytes to its socket and their departure, for longer than
    that time, and goes on beside its successor. Then records land at other offsets than they should. Both see it,
    by the broker's answer or the end of the log, stop, and say so (``RECORDS_DIFFER``); ``compare`` names them.

Gaps, at the same offsets
    An offset that has no committed record here has to be taken there. A marker of a transaction takes one: a gap
    of one offset is a transaction without records, a longer one an aborted transaction of one record less. Each
    is written by the transactional id, so it is fenced.
"""
