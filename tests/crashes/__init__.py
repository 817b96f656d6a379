"""Real jobs, killed at random moments: ``python -m tests.crashes --runs 100 --seed 1``.

victim     a spark-submit in a session of its own, watched, stopped, killed
world      the cluster, its source, and the comparison of the two
streams    drivers of streams, in the middle of their batches: --stream writer, sink, transaction
campaign   which job is hit when, and what was found after it
"""
