"""The one place of the engine that knows Spark; importing ``engine`` does not import it.

runner     run work on executors, packed into slices by weight
appending  a DataFrame -> one streaming pass of record batches per partition
failures   jobs that Spark gave up for want of machines
read_errors what Spark says of files that it cannot read
scanning   a read plan -> Spark's own Parquet reader over exactly those files
stream_format  the format of Spark's streams: stream_source reads (stream_columns: what), stream_sink appends
"""
