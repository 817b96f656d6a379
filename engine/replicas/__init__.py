"""The replicas of a partition, for appends, reads and upkeep.

    in_sync            proposes changes of an ISR
    damaged            makes a damaged leader resign
    taking_writes      makes a leader resign if its root accepts no writes
    behind_remote      lets a leader continue from the end of the remote log if the whole ISR has less
    remote_records     compares a leader's records with its remote log
    repair, registers  the kinds of damage of a replica and their repairs; the content of its registers
    repairing          performs repairs
    former             folders of replicas that a broker no longer has
    logs               the logs of all replicas, as a task lists them; one walk of a broker for all partitions of a
                       topic
    foreign_files      ignores files of removal rules that were never committed
    nearest            lists the leader for a reader, and finds the replica to read from (KIP-392)
    out_of_range       pure: the answer to a fetch at an offset, from the logs of replica and leader
    offsets_for_epoch  pure: the end of a leader epoch; whether a log matches a consumer's records

This package is below appends, reads and upkeep, and above the data plane, which handles one view of a partition.
"""
