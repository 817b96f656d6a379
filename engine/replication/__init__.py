"""The replication protocol's data plane: take over, join, sync, append, high watermark, expansion.

Every function here runs against stores alone and may be run by any number of drivers and executors at
once, zombies among them (protocol sections 2 and 3). They take ``PartitionReplicas``,
one partition under one view of the metadata, and never read the metadata themselves: callers commit first and list
afterwards, or list first and check the metadata afterwards, as the protocol's rule 2 asks.

    partition one partition: the view, and the replicas on their stores; what a task has to do on one
    leader    take over an epoch, the leader's log
    log_end   the end of the leader's log, as an append finds it and leaves it
    remote_end  what the leader's log must reach, or begin at: the end of the remote log
    lost_log  a leader without any of the records that the metadata know of
    sync      bring followers to the leader's log
    append    put records at the end of the leader's log, then on every member of the ISR
    old_appends  what the log's files still tell of appends of a producer that are older than its last five
    watermark advance the high watermark by proof
    damage    replicas that hold less than they once did, and whose fault it is
    hidden    files that merged segments have replaced, and whether these can stand for them
    snapshots which snapshot of a replica counts, and how followers get the leader's (KIP-630)
    unreadable records that cannot be read from a copy: the error, and going on to another copy
    replica_selector which replica a reader reads from: the plugin of KIP-392, and the two that ship
    throttle  a bound on the bytes that a task copies in a second
    shared_throttle  the same for all drivers that copy to a broker for a reassignment

Where this differs from the protocol's text
    * The log of a tiered partition never ends below its remote log: both are one log (``remote_end``). A
    take-over and
      a driver's first append under a leader epoch compare the two. I14: no offset is acknowledged with other
      records while the remote log holds the first. It holds where the remote tier answers; where not, appends
      go on.
    * Sync does not list the leader again between the bytes of a copy and its name. A copy is of the object that
      was listed, by its version; stores give out no other. The protocol says that this does the same.
    * An append goes on from the end that the one before has left under the same view (``log_end``). It looks
      behind that end alone, once its file is there, and gives the file to members that hold all before. The look
      before the write is one question, whether the name at the end is free: step 3 creates it exclusively, and
      step 4 sees whatever should have kept it from being written.
    * A replica is listed each time, and then only new names are asked about, parsed and resolved: a file never
      changes, and the log of an unchanged listing is the log of before (``stratalog.partitions.known_log``). On a
      local file system a folder that was not changed since it was listed, by the kernel's word, is not scanned
      (``stratalog.partitions.store.local_listing``). A sync that has found nothing to do has nothing to do as long
      as both logs are the ones that it saw. Only checks of the files themselves (``verify``, healing) ask about
      every file each time; others do so once a minute.
    * Sync also copies a merged segment of the leader that the follower holds as appends, instead of
      merging again there: bytes are copied, never re-encoded, so equal listings stay equal files.
    * An append that loses the race for its base offset encodes again, for offsets stand in the file. It
      keeps what it needs for that up to a bound; a larger one answers ``Raced``, and is run again.
    * An append may be given its offset, by a mirror of another log: it is made there, or not at all (step 3).
      A log that is to begin above 0, and never had a record, begins at the log start of its view before it is
      taken over or appended to; so it does on any replica that leads, and nothing below was ever there.
    * Before it takes an epoch over, a leader is compared with the other members of the ISR, as far as they can be
      looked at: one that has lost its folder would give its offsets away again, and the copies elsewhere would
      be the dead ones.
    * Damage has an owner. A member that lacks what it must have is not copied to before it has left the ISR; a
      leader that lacks what a follower proves resigns (``damage``; the protocol's "the replica is corrupt,
      leaves the ISR and is healed").
    * Followers are listed together, and the leader once after them. Where a follower's last file is the leader's
      by name and size, nothing of the follower is opened.
    * The first folder of a path is not the directory id but the *incarnation folder*
      (``stratalog.partitions.paths``): a root that was put back from an older copy has the id of the original,
      whose zombies must not write there.
"""
