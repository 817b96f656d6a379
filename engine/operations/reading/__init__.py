"""Reads of the committed log, on the driver: where, which files, and what they say.

look               leaders listed, remote logs loaded: what a partition holds now, in both tiers
nearest            the replica that a reader reads from (KIP-392)
list_offsets       ListOffsets: named positions, and positions by time
last               where the last n records begin
offsets_for_epoch  OffsetsForLeaderEpoch, as consumers ask it
plan_read, read    a batch: a pinned plan of file ranges, and its DataFrame
fetch, tail        small reads without a JVM: records from an offset on, and the end as it moves
"""
