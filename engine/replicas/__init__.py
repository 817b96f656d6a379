"""The replicas of a partition, as appends, reads and upkeep all need them.

in_sync            proposals to change an ISR
damaged            a leader that is damaged resigns
taking_writes      a leader whose root takes no writes resigns
behind_remote      leaders that are behind their remote logs, with all of their ISR, go on from the end of those
remote_records     a leader's records against those of its remote log
repair, registers  the kinds of damage of a replica, and their repairs; the content of its registers
mend               ... carried out
former             folders that replicas have left behind
logs               the logs of all replicas, as a task finds them
nearest            the leader as a reader sees it, and the replica that it reads from (KIP-392)
out_of_range       pure: the answer to a fetch at an offset, from the logs of replica and leader
offsets_for_epoch  pure: where a leader epoch ends, and whether a log is what a consumer has read

Below appends, reads and the upkeep of logs; above the data plane, which knows one view of a partition.
"""
