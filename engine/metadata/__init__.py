"""The cluster's metadata: what there is, who leads what, and how either may change. Pure.

Purpose
    The only authority on brokers, topics and partitions (protocol sections 2 and 4). It is a log of small
    records; everything else here is a function of it.

        records             the typed records and their JSON
        image               the state that the records add up to, as frozen values
        fold                the one fold: ``apply(image, offset, records) -> image``
        commands            what may be asked: ``command.decide(image) -> records + answer``; brokers
        topic_commands      ... topics and configs
        partition_commands  ... ISRs, log starts, elections
        placement           replicas over racks

In and out
    In: committed records (from ``engine.quorum``), commands (from everybody). Out: ``ClusterImage`` and,
    for replication, ``PartitionView``; records for the quorum to commit.

May not know
    Storage, time, randomness, Spark. A command carries whatever it needs of them (ids, a topic id as the
    seed of its placement), so that the same command on the same image always gives the same records.

What a replay derives
    Fencing or registering a broker is *one* record of a few bytes, whatever number of partitions it
    touches: the fold derives the new leaders, leader epochs and ISRs. Other changes of a partition are
    spelt out in its ``PartitionChangeRecord``.

Where this differs from the protocol's text
    * A partition whose ISR became empty (its last member's disk was lost) waits for an unclean election.
      The registration of the *old* storage does not bring it back by itself: the image does not remember
      who was last in the ISR.
    * ``AlterPartition`` refuses an ISR member that was not *being added* in the present partition epoch:
      the two commits of an expansion are enforced here, not only asked of proposers.
"""
