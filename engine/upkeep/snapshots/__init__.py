"""Short logs for topics with ``cleanup.policy=snapshot``, and for the metadata (KIP-630).

snapshot       one run
partition      makes a snapshot on the leader of a partition
spread         copies it to the other replicas, and deletes the snapshots that it replaces
publish        the latest record of each key, as a Delta table
metadata       the snapshot of the metadata log
estimate       the requests that a dry run does not send
read_snapshot  locates and verifies snapshots for readers; lists them; their metrics
"""
