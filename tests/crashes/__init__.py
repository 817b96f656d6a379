"""Real jobs, killed at random moments: ``python -m tests.crashes --runs 100 --seed 1``.

victim     a spark-submit in a session of its own, watched, stopped, killed
world      the cluster, its source, and the comparison of the two
streams    drivers of streams, in the middle of their batches: --stream writer, sink, transaction
campaign   which job is hit when, and what was found after it
unattended appenders and maintain on a real S3 server, killed; a broker lost; s3_world: its cluster, and how it has
           to end; appender: one of its processes
"""
