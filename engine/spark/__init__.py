"""The one place of the engine that knows Spark; importing ``engine`` does not import it.

runner     run work on executors, packed into slices by weight
described  the operation's name on Spark's own pages
given_up   jobs that Spark gave up for want of machines
appending  a DataFrame -> one streaming pass of record batches per partition
unknown_columns  fields of a frame that the topic's type lacks
bad_rows   rows that make no record of their topic, told by expressions
frame_tasks  its rows, fed to the tasks of an append: small_frames by the driver, narrow ones in larger batches
append_frame, read_frame, snapshot_frame   a DataFrame appended, a read plan and a snapshot as one
reducing   snapshots of partitions that are larger than a task's memory
views      what spark.sql knows a read by
system_views  what it knows the cluster's state by
catalog    what a catalog knows a topic by: its Delta table, and a view of both tiers
providers  functions that give credentials, on their way to executors
types      declared schemas -> Spark's types, without Spark's own readers of them
sql        names and texts in SQL
read_errors what Spark says of files that it cannot read
scanning   a read plan -> Spark's own Parquet reader over exactly those files
task_frame the same by Python tasks, where a provider gives the credentials
format     the format of Spark: stream_source and batch_source read (stream_columns: what; stream_limits),
           stream_sink and batch_sink append
range_stream   the batches of a stream as scans: its source carries ranges of offsets
sink_tasks     the appends of sinks on executors
stream_query   which query is running
key_hash   hashes of keys by Kafka's clients, as a function of columns
versions   differences of the versions of Spark that work
"""
