"""Damaged files replaced, and what was truncated found again.

heal            files of brokers replaced by verified copies (plan: which)
rebuild         ... and objects of the remote tier by what replicas still have of them (rebuild_plan: which)
sources         the good files of a partition, and those that together hold a range of offsets: for both plans
tables          ... and tables that others have rewritten list the segments again
history         what replicas have discarded and still hold
recover         ... exported (export)
keep            one of two histories kept, where a leader and its remote log contradict each other
begin_again     ... and logs of which nobody has a record any more

Other packages and modules look for the truth of a range by other evidence, without ``sources``. ``verification``
finds what is wrong, before anybody knows which files are good. ``restoring`` has no replica: the remote table says
where the log begins and ends, and the footer of its last segment has the epochs and producers. ``history`` and
``recover`` look for files with records that are *not* of the leader's history (``discarded_files``). ``keep``
compares the leader epochs of two histories.
"""
