"""Replaces damaged files, and finds truncated records.

heal            replaces files of brokers with verified copies, by ``plan``
rebuild         rebuilds objects of the remote tier from replicas, by ``rebuild_plan``
sources         for both plans: the good files of a partition, and a selection of them that covers a range of
                offsets
tables          reverts rewrites of tables by other programs, which ``maintain`` and ``heal`` find estimate
the requests of a heal, for a dry run history         lists files that replicas have discarded but not yet deleted
recover         exports the records of discarded files keep            keeps one of two histories, if a leader and
its remote log contradict each other; restarts lost logs

Some modules find the files or epochs of a range of offsets without ``sources``. ``verification`` finds damage
before the good files are known. ``restoring`` has no replicas: it takes the start and end of the log from the
remote table, and the epochs and producers from the footer of the last segment. ``history`` and ``recover`` look
for files with records that do *not* belong to the leader's history (``discarded_files``). ``keep`` compares the
leader epochs of two histories.
"""
