"""Real jobs, killed at random moments: ``python -m tests.crashes --runs 100 --seed 1``.

victim     a spark-submit in a separate session, which is watched, stopped and killed
world      the cluster, its source, and the comparison of the two
streams    drivers of streams, killed in the middle of their batches: --stream writer, sink, transaction
campaign   the schedule of the kills, and the findings after them
unattended appenders and maintain on a real S3 server, which are killed while a broker is lost; s3_world has the
           cluster and its required final state, and appender is one of the processes
"""
