"""The cluster's metadata: what there is, who leads what, and how either may change. Pure.

Purpose
    The only authority on brokers, topics and partitions (protocol sections 2 and 4). It is a log of small
    records; everything else here is a function of it.

        records                 the typed records and their JSON
        image                   the state that the records add up to, as frozen values
        overlay                 mappings of an image that share what is not changed
        fold                    the one fold: ``apply(image, offset, records) -> image``
        commands                what may be asked: ``command.decide(image) -> records + answer``; brokers
        topic_commands          ... topics and configs, restored topics among them
        partition_commands      ... ISRs and log starts, in batches
        voter_commands          ... metadata voters
        election_commands       ... elections
        reassignment_commands   ... other replicas
        partition_changes       what the commands on partitions share
        protection              topics whose records nobody may delete before a time
        description             the cluster without its storage, for a restore
        dump                    an image as records of a snapshot, and back
        probed_roots            what follows from how the roots of the brokers were found
        placement               replicas over racks
        reassignment_plan       which replicas a reassignment asks for

In and out
    In: committed records (from ``stratalog.engine.quorum``), commands (from everybody). Out: ``ClusterImage`` and,
    for replication, ``PartitionView``; records for the quorum to commit.

May not know
    Storage, time, randomness, Spark. A command carries whatever it needs of them (ids, a topic id as the
    seed of its placement), so that the same command on the same image always gives the same records.

Derivation by replay
    Fencing or registering a broker is *one* record of a few bytes, whatever number of partitions it
    touches: the fold derives the new leaders, leader epochs and ISRs. Other changes of a partition are
    spelt out in its ``PartitionChangeRecord``.

Where this goes beyond the protocol's text
    * Another *incarnation* of a root is also a restored older copy of it: the same directory id, and another
      ``broker.json`` as an object. Until an operator says that it is a faithful copy.
    * A partition whose ISR became empty remembers whose storage the last member was (``lost``). That storage,
      registered again, is the ISR and leads; any other incarnation of it waits for an unclean election.
    * A leader whose storage is damaged *resigns*: the record that elects another takes it out of the ISR.
    * An election may begin where the remote log ends (``Election.remote_epoch``): the leader is alone in its
      ISR, and its epoch is later than any that the remote log knows, also where the metadata was put back to an
      older state.
    * A partition remembers that it was written to (``written_to``), so that a lost log is no new one. An election
      lets it begin again (``Election.lost``), in new folders: what comes late to the old ones is nobody's.
    * ``AlterPartition`` refuses an ISR member that was not *being added* in the present partition epoch:
      the two commits of an expansion are enforced here, not only asked of proposers.
    * A reassignment is the replicas that it leads to (``target``), and those that are here only because of it
      (``joining``). Brokers may come and go meanwhile; it ends when a proposal leaves no joining replica
      outside the ISR, when the same one is asked for again, or when it is cancelled.
"""
