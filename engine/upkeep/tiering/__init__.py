"""Copies sealed segments to the remote tier: KIP-405's Remote Log Manager.

tier         one run
schedule     the stored list of due partitions
tasks        the tasks for a partition: planning its uploads, and an upload
uploads      runs uploads in turns, and commits them as they complete
state        the state of a run: its topics and partitions
remote_logs  reads the remote logs of several topics at once
iceberg      publishes the same segments as Iceberg tables
point        restore points: descriptions of the cluster, from which it can be restored
"""
