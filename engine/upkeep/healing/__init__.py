"""Damaged files replaced, and what was truncated found again.

heal            files of brokers replaced by verified copies (plan: which)
rebuild         ... and objects of the remote tier by what replicas still have of them (rebuild_plan: which)
tables          ... and tables that others have rewritten list the segments again
history         what replicas have discarded and still hold
recover         ... exported (export)
keep            one of two histories kept, where a leader and its remote log contradict each other
begin_again     ... and logs of which nobody has a record any more
"""
