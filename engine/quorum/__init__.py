"""The metadata log: a majority of passive voters, one claimant an epoch (protocol section 5).

Purpose
    To commit batches of metadata records, each at its final offset, and to read all that is committed,
    with any number of drivers at once, some of them zombies, and no server.

        batch        one committed batch: a data file of ``partitions``, one row per record
        repeated     batches that a later one repeats, so that one request brings many
        voter        one voter: a folder on the root of a broker; look, claim, create
        state        a log up to its end, and the voters that show it; snapshots count as log
        checkpoints  snapshots in the folders of voters: written, read, copied
        contents     the greatest log of some voters, and copies of it for those that lack it
        finding      the greatest log on some roots, of any cluster's voters
        damage       voters whose files cannot be believed, and what a majority shows without them
        electorate   the voters, and looks at a majority of them; why they may change
        proof        the log that looks prove to be committed, for drivers without the right to write
        patience     how long drivers wait for each other
        claim        an epoch that a driver has claimed, and what it goes on from
        log          claim an epoch, commit a batch, read linearizably
        client       what the engine uses: ``image()`` and ``submit(command)``; many commands in one batch
        bootstrap    the first batch of a new cluster, and finding the log of an existing one
        upkeep       take a snapshot, move the log start, delete; why that is safe
        cache        what a driver remembers between its runs
        inspection   what there is on each voter, for people

In and out
    In: records, from commands of ``stratalog.engine.metadata``. Out: images of ``stratalog.engine.metadata``.

May not know
    The meaning of the records (but for the first, which names the voters), and anything of Spark. Clock,
    randomness and ids are passed in, and nothing runs in a thread of its own: the simulation runs this code.

How a batch is recognised
    By its name. An epoch has one claimant, and a claimant writes one batch at an offset: it goes on with
    the same bytes until they are committed, or gives its claim up. So ``<base>.<epoch>`` has the same bytes
    on every voter that ever has it, and *did my batch land?* is *does that epoch own that offset in the
    lineage?*, which snapshots keep too. A caller that retries an unknown outcome asks that, on a log that
    it has claimed, before it decides its command again.

    For the same reason a batch may repeat those before it (``repeated``), and a reader take them from there: under
    a name they are what the files are, and a claimant knows all that its epoch goes on from. Whether a batch is in
    the log, and on a majority, is told by the names of files alone.

    A lineage forgets what lies below the log start of a majority of the voters; it would be in every batch, longer
    by an entry with each claim. Of a batch from down there the outcome stays unknown, and so its caller is told.

Drivers in each other's way
    Only a claimed epoch lets a driver write, and a greater claim ends it: drivers that claim at once would go on
    fencing each other. So all claim on the voters in one order, and the exclusive create on the first decides
    who goes on; the others look at that voter alone, now and then, until the claimant has committed, rests, or
    seems to have died (``patience``). All this is for speed: no wait, and no clock, makes anything safe.

Drivers without the right to write
    A read writes where others have left something undone. A driver without that right answers with the log that
    looks at all voters prove (``proof``); a command that it cannot commit is refused at once, and the error names
    right and path. One voter that refuses is done without, as one that is away.

Where this differs from the protocol's text
    * A voter counts when its last file is the tail and it has *every* file of the log, not the tail alone:
      one comparison of names, and a file deleted by hand is copied back by the next commit.
    * The high watermark is not written down: a linearizable read proves itself, snapshots are taken of what one
      has returned, and observers are drivers, which read so too.
    * The log start is not written down either. It is where a voter's files begin, and a voter needs those from
      the end of its latest snapshot on to count.
    * A read is finished by its first round of listings when they show what is asked for: every listing was
      made after the read began, and a claim that comes after a listing sees what the listing saw.
    * A command is decided on the claimed state without a read before it: the commit shows whether that was the
      latest. A refusal, and an answer that changes nothing, rest on a read, or on a commit.

Whose files they are
    Where the cluster has a key (``stratalog.partitions.cluster_key``), batches and snapshots are signed for their
    name, and a claim has its tag in its name, so that a look tells who made it without reading it. A file of
    somebody else is damage of that one voter, which is left out. All who sign with one secret claim an epoch under
    one name, and exclusive create decides; while one secret takes another's place there may be two names for one
    epoch: then it is nobody's on that voter (``VoterLook.disputed``). A driver without the key reads what is
    signed, as it is, and neither claims, nor commits, nor copies: what it took for the log might be a stranger's.

Limits
    A voter's root that was put back from an older copy still has its directory id, and with it its vote. Together
    with a voter that lags it shows an old log to a driver that reaches these two alone. The metadata know the
    identity of each broker's root (``BrokerImage.root``), but a vote is not made to depend on it: object stores
    have none; where all roots are moved at once, a copied cluster or the only voter, no majority would be left to
    read by, or to commit the registration that says so; and a file system that numbers its files anew would stop
    every voter at the same moment. Remove such a voter and add it again (``stratalog quorum``) before others go
    away.
"""
