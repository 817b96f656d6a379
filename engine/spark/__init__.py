"""The only package of the engine that imports pyspark; importing ``engine`` does not import it.

runner         runs tasks on executors, packed into slices by weight
described      shows the operation's name on Spark's own pages
aborted        jobs that Spark aborted because executors were lost
appending      a DataFrame -> one streaming pass of record batches per partition
unknown_columns   columns of a frame that the topic's type does not have
bad_rows       finds rows that the topic cannot store, by SQL expressions
frame_tasks    feeds a frame's rows to append tasks: a few rows from the driver, many by a shuffle
narrow         larger batches for narrow records
worker_garbage   garbage collections in Python workers, without the objects of modules
append_frame, read_frame   appends a DataFrame; makes a DataFrame from a read plan or from snapshots
reducing       snapshots of partitions that are larger than a task's memory
views          temporary views and table functions of topics and of the cluster's state
catalog        a topic in a catalog: its Delta table, and a view of both tiers
providers      sends functions that provide credentials to executors
types          declared schemas -> Spark types, without Spark's own parsers
balanced       expressions of many terms as shallow trees
sql            quotes names and texts for SQL
time_zone      the session's time zone, for times given without one
read_errors    translates Spark's errors about unreadable files
scanning       a read plan -> Spark's Parquet reader over exactly those files
task_frame     the same read by Python tasks, if a provider gives the credentials
format         Spark's format ``stratalog``: ``stream_source`` reads streams (``stream_columns``,
               ``stream_limits``), ``stream_sink`` and ``batch_sink`` append, and ``batch_sink`` also reads batches
stream_writer  appends a stream's batches of any size (``foreachBatch``)
given_rows     makes records on the driver from a sink's rows with Kafka's columns or a typed topic's columns
short_errors   errors of the format without Python's stack
range_stream   the batches of a stream as scans: its source carries ranges of offsets
sink_tasks     the appends of sinks on executors, and rows that the driver appends
stream_query   the id of the running query
key_hash       the hashes of Kafka's clients as a column function
versions       differences between the supported versions of Spark
"""
