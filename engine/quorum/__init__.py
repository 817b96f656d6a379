"""The metadata log: a majority of passive voters, and one claimant per epoch (protocol section 5).

Purpose
    Commits batches of metadata records, each at its final offset, and reads all committed batches. This needs no
    server. Any number of drivers may do it at the same time, and some of them may be zombies.

        batch        one committed batch: a data file of ``partitions``, one row per record
        repeated     earlier batches inside a later batch, so that one request reads many batches
        voter        one voter, a folder on the root of a broker: list, claim, create
        state        a log up to its end, and the voters that show it; a snapshot replaces the log up to its end
        checkpoints  snapshots in the folders of voters: written, read, copied
        contents     the greatest log of some voters, and copies of this log for voters that lack a part of it
        finding      the greatest log on some roots, before the voters are known
        damage       voters with untrustworthy files, and the log that a majority shows without them
        electorate   the voters, and listings of a majority of them; why the voters may change
        proof        the log that listings prove to be committed, for drivers without the right to write
        patience     how long drivers wait for each other
        claim        an epoch that a driver has claimed, and the log that the epoch continues
        log          claims an epoch, commits a batch, reads linearizably
        client       the engine's interface: ``image()`` and ``submit(command)``; many commands in one batch
        bootstrap    the first batch of a new cluster, and finding the log of an existing one
        upkeep       takes snapshots, moves the log start, deletes files; why deletion is safe
        cache        a driver's cache between its runs
        inspection   the content of each voter, for operators

Input and output
    Input: records, from commands of ``stratalog.engine.metadata``. Output: images of
    ``stratalog.engine.metadata``.

For the simulation
    The quorum understands only the first record, which names the voters. Clock, randomness and ids are passed in,
    and nothing starts threads, so the simulation can run this code.

How a batch is recognized
    A batch's name identifies it. An epoch has one claimant, and a claimant writes one batch at an offset: it
    retries the same bytes until they are committed, or abandons its claim. So the file ``<base>.<epoch>`` has the
    same bytes on every voter. The question *did my batch land?* means *does that epoch own that offset in the
    lineage?*, and snapshots keep the lineage too. After an unknown outcome, a caller claims the log and answers
    this question, before it decides its command again.

    For the same reason a batch may repeat earlier batches (``repeated``), and a reader may take them from the
    later batch: a batch's name identifies its content, and a claimant has read the complete log that its epoch
    continues. Whether a batch is in the log, and on a majority, depends only on file names.

    Each batch contains the lineage, which grows with each claim. So the lineage drops entries below the log start
    of a majority of the voters. The outcome of a batch below that log start stays unknown, and its caller gets
    that answer.

Contention between drivers
    A driver can write only in an epoch that it has claimed, and a greater claim ends that epoch. Drivers that
    claim at the same time would fence each other forever. So all drivers claim on the voters in the same order,
    and the exclusive create on the first voter decides. The other drivers only poll that voter until the claimant
    has committed, pauses, or seems dead (``patience``). This only affects speed: safety does not depend on a wait
    or a clock.

Drivers without the right to write
    A read may have to write, to finish the work of other drivers. A driver without the right to write answers with
    the log that is proven by listing all voters (``proof``). A command that such a driver cannot commit is refused
    immediately, and the error names the right and the path. A voter that refuses is treated as unreachable.

Differences from the text of the protocol
    * A voter is counted for a log only if it has *every* file of the log, and the tail of the log is the voter's
      last file. One comparison of names checks this. The next commit restores a file that was deleted by hand.
    * The high watermark is not stored: a linearizable read proves which records are committed, snapshots contain
      only such records, and observers are drivers, which read the same way.
    * The log start is not stored either. It is the start of a voter's files. To be counted, a voter needs the
      files from the end of its latest snapshot on.
    * A read ends after its first round of listings if they show the result: each listing was made after the read
      began, and a driver that claims after a listing also sees the files that the listing showed.
    * A command is decided on the claimed state without a read: the commit shows whether that state was the latest.
      A refusal, and an answer without a change, are based on a read, or on a commit.

Signed files
    If the cluster has a key (``stratalog.partitions.cluster_key``), batches and snapshots are signed for their
    name. The tag of a claim is in the claim's name, so a listing identifies the author of a claim without a read.
    A foreign file is treated as damage of its voter, and the voter is left out. All holders of one secret claim an
    epoch under the same name, and exclusive create decides. During a rotation of secrets there may be two names
    for one epoch. If so, no driver has the epoch on that voter (``VoterLook.disputed``). A driver without the key
    reads signed files unverified. It does not claim, commit or copy, because the log that it has read might be
    foreign.

Limits
    A voter's root that was restored from an older copy keeps its directory id, and so its vote. Together with a
    lagging voter, such a root shows an old log to a driver that reaches only these two. The metadata has the
    identity of each broker's root (``BrokerImage.root``), but a vote does not depend on this identity, for three
    reasons. Object stores have no such identity. If all roots moved at the same time (a copied cluster, or the
    only voter), no majority would be left to read, or to commit the new registration. A file system that renumbers
    its files would stop all voters at the same time. Remove a restored voter and add it again (``stratalog
    quorum``) before other voters become unreachable.
"""
