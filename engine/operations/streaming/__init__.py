"""Topics as the source of a Spark stream.

source      triggers and batches, planned on the driver
read        a task of a batch, on an executor
progress    a consumer group is told how far the stream has come
"""
