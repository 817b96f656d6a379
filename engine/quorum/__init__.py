"""The metadata log: a majority of passive voters, and one claimant per epoch (protocol section 5).

Purpose
    Commits batches of metadata records, each at its final offset, and reads all committed ones, with any number of
    concurrent drivers, some of which may be zombies, and no server.

        batch        one committed batch: a data file of ``partitions``, one row per record
        repeated     earlier batches inside a later one, so that one request reads many
        voter        one voter, a folder on the root of a broker: list, claim, create
        state        a log up to its end, and the voters that show it; snapshots count as log
        checkpoints  snapshots in the folders of voters: written, read, copied
        contents     the greatest log of some voters, and copies of it for those that lack it
        finding      the greatest log on some roots, of any cluster's voters
        damage       voters with untrustworthy files, and the log that a majority shows without them
        electorate   the voters, and listings of a majority of them; why they may change
        proof        the log that listings prove to be committed, for drivers without the right to write
        patience     how long drivers wait for each other
        claim        an epoch that a driver has claimed, and the log that it continues
        log          claims an epoch, commits a batch, reads linearizably
        client       the engine's interface: ``image()`` and ``submit(command)``; many commands in one batch
        bootstrap    the first batch of a new cluster, and finding the log of an existing one
        upkeep       takes snapshots, moves the log start, deletes; why that is safe
        cache        a driver's cache between its runs
        inspection   the content of each voter, for operators

Input and output
    Input: records, from commands of ``stratalog.engine.metadata``. Output: images of
    ``stratalog.engine.metadata``.

May not know
    The meaning of the records (except the first, which names the voters), or Spark. Clock, randomness and ids are
    passed in, and nothing starts threads: the simulation runs this code.

How a batch is recognized
    A batch's name identifies it. An epoch has one claimant, and a claimant writes one batch at an offset: it
    retries the same bytes until they are committed, or abandons its claim. So ``<base>.<epoch>`` has the same
    bytes on every voter, and *did my batch land?* means *does that epoch own that offset in the lineage?*, which
    snapshots keep too. After an unknown outcome a caller answers that question on a log that it has claimed,
    before it decides its command again.

    For the same reason a batch may repeat earlier ones (``repeated``), and a reader may take them from there:
    their names identify their content, and a claimant knows the whole log that its epoch continues. Whether a
    batch is in the log, and on a majority, depends on file names alone.

    A lineage drops entries below the log start of a majority of the voters, because it is in every batch, and
    grows with each claim. The outcome of a batch below that start stays unknown, and its caller gets that answer.

Contention between drivers
    Only a claimed epoch lets a driver write, and a greater claim ends it: drivers that claim at the same time
    would fence each other forever. So all drivers claim on the voters in the same order, and the exclusive create
    on the first voter decides. The others only poll that voter until the claimant has committed, pauses, or seems
    dead (``patience``). This only affects speed: safety does not depend on a wait or a clock.

Drivers without the right to write
    A read may have to finish the work of others by writing. A driver without that right answers with the log that
    is proven by listing all voters (``proof``). A command that it cannot commit is refused immediately, and the
    error names the right and the path. A voter that refuses counts as unreachable.

Differences from the text of the protocol
    * A voter is counted for a log when its last file is the tail and it has *every* file of the log, not only the
      tail: one comparison of names, and the next commit restores a file that was deleted by hand.
    * The high watermark is not stored: a linearizable read proves which records are committed, snapshots contain
      only such records, and observers are drivers, which read the same way.
    * The log start is not stored either. It is the start of a voter's files, and a voter needs those from the end
      of its latest snapshot on to count.
    * A read ends after its first round of listings if they show the result: each listing was made after the read
      began, and a claim after a listing sees what the listing saw.
    * A command is decided on the claimed state without a read: the commit shows whether that was the latest. A
      refusal, and an answer without a change, are based on a read, or on a commit.

Signed files
    If the cluster has a key (``stratalog.partitions.cluster_key``), batches and snapshots are signed for their
    name, and a claim has its tag in its name, so a listing identifies the claim's author without a read. A foreign
    file counts as damage of that voter, and the voter is left out. All holders of one secret claim an epoch under
    one name, and exclusive create decides; during a rotation of secrets there may be two names for one epoch: then
    no driver has it on that voter (``VoterLook.disputed``). A driver without the key reads signed files
    unverified, and does not claim, commit or copy, because its log might be foreign.

Limits
    A voter's root that was restored from an older copy keeps its directory id, and so its vote. Together with a
    lagging voter it shows an old log to a driver that reaches only these two. The metadata has the identity of
    each broker's root (``BrokerImage.root``), but a vote does not depend on it: object stores have no such
    identity; if all roots move at the same time (a copied cluster, or the only voter), no majority would be left
    to read, or to commit the new registration; and a file system that renumbers its files would stop all voters at
    the same time. Remove such a voter and add it again (``stratalog quorum``) before others become unreachable.
"""
