"""Replaces damaged files, and finds truncated records.

heal            replaces files of brokers with verified copies, by ``plan``
rebuild         rebuilds objects of the remote tier from replicas, by ``rebuild_plan``
sources         the good files of a partition, and a choice of them that covers a range of offsets, for both plans
tables          reverts rewrites of tables by other programs, which ``maintain`` and ``heal`` find
estimate        the requests that a dry run of heal leaves out
history         lists files that replicas have discarded but still have
recover         exports these records (``export``)
keep            keeps one of two histories, if a leader and its remote log contradict each other
begin_again     restarts logs whose records are all lost

Other modules determine the content of a range without ``sources``. ``verification`` finds damage before it is
known which files are good. ``restoring`` has no replica: the remote table shows where the log begins and ends, and
the footer of its last segment has the epochs and producers. ``history`` and ``recover`` look for files with
records that do *not* belong to the leader's history (``discarded_files``). ``keep`` compares the leader epochs of
two histories.
"""
