"""The cluster's metadata: brokers, topics, partitions and their leaders, and commands that change them. Pure.

Purpose
    The only authority on brokers, topics and partitions (protocol sections 2 and 4). The metadata is a log of
    small records; everything else in this package is a function of that log.

        records                 typed records, and their JSON
        image                   the state after the records, as frozen values
        chosen                  topics and partitions of an image by name or key, with their current configs
        overlay                 copies of mappings that share unchanged entries
        fold                    the one fold: ``apply(image, offset, records) -> image``
        commands                ``command.decide(image) -> records + answer``; commands on brokers
        topic_commands          commands on topics and configs, restored topics among them
        partition_commands      commands on ISRs and log starts, in batches
        erasure_commands        commands to erase records at given offsets, and to forget the offsets
        snapshot_erasure_commands   the same for partitions with snapshots
        voter_commands          commands on metadata voters
        election_commands       commands to elect leaders
        reassignment_commands   commands to reassign replicas
        partition_changes       the common part of commands on partitions
        protection              topics with records that must not be deleted before a time
        description             the cluster without its storage, for a restore
        dump                    an image as records of a snapshot, and back
        probed_roots            fences and registers brokers by the probed state of their roots
        placement               places replicas over racks
        reassignment_plan       computes the replicas of a reassignment

Input and output
    Input: committed records (from ``stratalog.engine.quorum``) and commands. Output: ``ClusterImage`` and, for
    replication, ``PartitionView``; records for the quorum to commit.

Commands
    A command contains all values that depend on these (ids, a topic id as the
    seed of its placement), so that the same command on the same image always gives the same records.

Derivation by replay
    Fencing or registering a broker is *one* record of a few bytes, however many partitions it affects: the
    fold derives the new leaders, leader epochs and ISRs. Other changes of a partition are spelled out in its
    ``PartitionChangeRecord``.

Extensions of the protocol's text
    * A restored older copy of a root is also a different *incarnation*, unless an operator vouches that the copy
      is faithful: the copy has the same directory id, but its ``broker.json`` is a different object.
    * A partition whose ISR became empty records the storage of the last member (``lost``). If that storage is
      registered again, it becomes the ISR and leads. If only another incarnation of the storage is registered, the
      partition waits for an unclean election.
    * A leader whose storage is damaged *resigns*: the record that elects another leader removes the damaged one
      from the ISR.
    * An election may begin at the end of the remote log (``Election.remote_epoch``): the leader is alone in its
      ISR, and its epoch is later than any epoch in the remote log, even if the metadata was restored to an older
      state.
    * A partition records that it was written to (``written_to``), which distinguishes a lost log from a new one.
      After such a loss, an election lets the log begin again (``Election.lost``), in new folders, so that late
      writes to the old folders have no effect.
    * ``AlterPartition`` refuses an ISR member that was not *being added* in the current partition epoch. So the
      two commits of an expansion are enforced here: proposers cannot skip the first commit.
    * A reassignment consists of its final replicas (``target``), and the replicas that exist only for the
      reassignment (``joining``). Brokers may come and go meanwhile. The reassignment ends when a proposal leaves
      no joining replica outside the ISR, when the same reassignment is requested again, or when it is cancelled.
"""
