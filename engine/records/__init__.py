"""Appends records: batches, rows and frames of callers, and the engine's own records of groups and transactions.

append          appends batches to the leaders of their partitions
produce         partitions and appends the rows and frames of this process, without Spark
partitioner     the partition of a key, with the hashes of Kafka's clients
spark_hash      Spark's hash of keys
tables          pandas, polars and Arrow objects as Arrow tables
unknown_fields  handling of fields that the topic's type does not have
earlier         earlier attempts of an append: their partitions, and the partition count that they used
remote_end      reads the remote ends of a topic's logs before the first append
rounds          retries each partition under its current leader until it is appended
bad_records, bad_record_lane   finds records that the log cannot store, and appends them to the bad-record topic
acknowledge     the second half of an append: acknowledges records, or reports that their outcome is unknown
through_rules   acknowledges appends that tasks made, even if a removal rule is committed meanwhile
answers         the rows of the report about partitions and attempts
state_log       creates, reads and appends to the engine's own topics, including the topic of operation events
groups          committed offsets of consumer groups, in ``__consumer_offsets``, and their lag
transact        a transaction of a producer (KIP-98)
coordinator     transactional ids: their owners, and the decisions about their transactions
markers         the end of a transaction in each partition
transactions    lists, describes, finishes and aborts transactions; finds hanging transactions (KIP-664)
"""
