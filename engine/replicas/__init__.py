"""The replicas of a partition, as appends, reads and upkeep all need them.

in_sync            proposals to change an ISR
damaged            a leader that is damaged resigns
repair, registers  what may be damaged of a replica, and what mends it; what stands in its registers
mend               ... carried out
former             folders that replicas have left behind
logs               the logs of all replicas, as a task finds them
nearest            the replica that a reader reads from (KIP-392)
out_of_range       pure: what a fetch at an offset comes to, by what replica and leader hold
offsets_for_epoch  pure: where a leader epoch ends, and whether a log is what a consumer has read

Below whatever appends, reads or looks after a log; above the data plane, which knows one view of a partition.
"""
