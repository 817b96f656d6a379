"""Records into the log: appends, and what the engine itself appends for groups and transactions.

append       batches, to the leaders of their partitions
produce      rows and frames of this process, dealt out, appended without Spark
partitioner  the partition of a key, by the topic's partitioner
spark_hash   Spark's hash of keys
kafka_hash   those of Kafka's clients
tables       what pandas, polars and Arrow hold, as Arrow tables
unknown_fields  what becomes of fields that the topic's type lacks
earlier      earlier tries of an append: the partitions that have it, and among how many it was dealt out
remote_end   the remote ends of a topic's logs, read before the first append
rounds       each partition until it is appended, under whatever leader it has by then
bad_records, bad_record_lane   records that no log of their topic can hold: which, and what becomes of them
acknowledge  the second half, for all partitions at once: what of it is acknowledged, and what only perhaps
answers      what the report says of each partition, and of which attempts
state_log    the engine's own topics: created, read, appended to
operations   an event of each operation that changed something, into ``__operations``
groups       what consumer groups have committed, in ``__consumer_offsets``, and their lag
transact     a transaction as its producer sees it (KIP-98)
coordinator  transactional ids: their holders, and the decisions about their transactions
markers      the end of a transaction in each partition
transactions list, describe, finish, abort; find what hangs (KIP-664)
"""
