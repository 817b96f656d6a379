"""Short logs for topics with ``cleanup.policy=snapshot``, and for the metadata (KIP-630).

snapshot       one run of it
partition      made on the leader of a partition
spread         copied to the other replicas; what it replaces is deleted
publish        the latest record of each key, as a Delta table
metadata       that of the metadata log
read_snapshot  located and verified, to be read; as a table; its metrics
"""
