"""Sealed segments to the remote table: KIP-405's Remote Log Manager.

tier         one run of it
schedule     where the list of due partitions lives
tasks        of a partition: what is to be uploaded, and its upload
uploads      in turns, committed as they come
state        what a run knows of the topics and partitions that it works on
remote_logs  what the remote tier says of topics, several at once
iceberg      the same segments as Iceberg tables
point        restore points: descriptions of the cluster, by which it can be restored
"""
