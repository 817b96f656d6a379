"""The data plane of the replication protocol: take over, join, sync, append, high watermark, expansion.

All functions work only on stores. Any number of drivers and executors may run them at the same time, including
zombies (protocol sections 2 and 3). The functions accept ``PartitionReplicas``, one partition under one view of
the metadata, and never read the metadata. A caller commits first and lists afterwards, or lists first and checks
the metadata afterwards (protocol, rule 2).

    partition         one partition: the view, its replicas on their stores, and a task's work on it
    leader            takes over an epoch; the leader's log
    later_rule        files of a later removal than the view has
    log_end           the end of the leader's log between two appends of a driver
    remote_end        keeps the leader's log from ending below the remote log
    lost_log          a leader that has none of the records that the metadata shows
    sync              brings followers to the leader's log
    append            writes records at the end of the leader's log, then to the ISR; finds old appends
    append_file       the file of an append: records, and then the footer
    removal           applies a removal rule on the leader; the ISR copies the segments
    erasing           the same for erasures
    erasing_snapshots   the same for erasures of partitions with snapshots
    watermark         advances the high watermark by proof
    damage            replicas that have less than they once had, and the broker to blame
    snapshots         selects the valid snapshot of a replica; followers fetch the leader's (KIP-630)
    unreadable        the error for records that a copy cannot provide, and the fallback to another copy
    replica_selector  selects the replica to read from: KIP-392's plugin, and two implementations
    throttle          limits the bytes per second that a task, or all drivers together, copy

Differences from the text of the protocol
    * The log of a tiered partition never ends below its remote log, because the two are one log (``remote_end``).
      A take-over, and a driver's first append under a leader epoch, compare the ends of both logs. Invariant I14:
      no offset of the remote log is acknowledged with other records. The invariant holds while the remote tier
      answers; if the tier does not answer, appends continue.
    * Sync does not list the leader again between copying the bytes and naming the copy. It copies the listed
      version of an object, and stores never return a different version. The protocol accepts this as equivalent.
    * An append continues from the end that the previous append left under the same view (``log_end``). It creates
      its file exclusively (step 3) without another listing, then lists only names after that end (step 4), and
      copies the file to members that have everything before it. It reads a small file only once: for the footer,
      which shows that this append made the file, for the checksum, and for the copies.
    * A listing opens only new names: files never change, and an unchanged listing gives the earlier log
      (``stratalog.partitions.known_log``). A local folder whose modification time is unchanged is not scanned
      (``stratalog.partitions.store.local_listing``). Only checks of the files themselves (``verify``, healing)
      query every file each time; other operations do so once a minute.
    * If the follower holds a merged segment as single appends, sync also copies the segment, instead of merging on
      the follower. Bytes are copied, never re-encoded, so equal listings mean equal files.
    * An append that loses the race for its base offset is encoded again, because files contain offsets. An append
      keeps a bounded amount of records for that. A larger append returns ``Raced``, and the caller repeats it.
    * A mirror may name the offset of an append: the append takes that offset, or fails (step 3). A log that begins
      above 0 and never had a record begins at the log start of the view, whichever replica leads.
    * Before a leader takes over an epoch, its log is compared with the logs of the reachable members of the ISR. A
      leader that lost its folder would assign the log's offsets a second time.
    * Each damage is attributed to one replica. A member that lacks records that it must have leaves the ISR before
      sync copies to it. A leader resigns if a follower proves that records are missing from the leader's log
      (``damage``).
    * Followers are listed together, then the leader once. If a follower's last file equals the leader's in name
      and size, no file of the follower is opened.
    * The first folder of a path is the *incarnation folder* (``stratalog.partitions.paths``), not the directory
      id. A root that was restored from an older copy has the directory id of the original root, and zombies of the
      original must not write to it.
"""
