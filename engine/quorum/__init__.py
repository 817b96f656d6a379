"""The metadata log: a majority of passive voters, one claimant an epoch (protocol section 5).

Purpose
    To commit batches of metadata records, each at one offset for ever, and to read all that is committed,
    with any number of drivers at once, some of them zombies, and no server.

        batch        one committed batch: a data file of ``partitions``, one row per record
        voter        one voter: a folder on the root of a broker; list, claim, create
        state        a log up to its end, and who shows it; snapshots count as log
        checkpoints  snapshots in the folders of voters: written, read, copied
        contents     the greatest log of some listings, and copies of it for those that lack it
        log          claim an epoch, commit a batch, read linearizably; why voters may change
        client       what the engine uses: ``image()`` and ``submit(command)``; many commands in one batch
        bootstrap    the first batch of a new cluster, and finding the log of an existing one
        upkeep       take a snapshot, move the log start, delete; why that is safe
        cache        what a driver remembers between its runs
        inspection   what there is on each voter, for people

In and out
    In: records, from commands of ``engine.metadata``. Out: images of ``engine.metadata``.

May not know
    What the records mean (but for the first, which names the voters), and anything of Spark. Clock,
    randomness and ids are passed in, and nothing runs in a thread of its own: the simulation runs this code.

How a batch is recognised
    By its name. An epoch has one claimant, and a claimant writes one batch at an offset: it goes on with
    the same bytes until they are committed, or gives its claim up. So ``<base>.<epoch>`` has the same bytes
    on every voter that ever has it, and *did my batch land?* is *does that epoch own that offset in the
    lineage?*, which snapshots keep too. A caller that retries an unknown outcome asks that, on a log that
    it has claimed, before it decides its command again.

Where this differs from the protocol's text
    * A voter counts when its last file is the tail and it has *every* file of the log, not the tail alone:
      one comparison of names, and a file deleted by hand is copied back by the next commit.
    * The high watermark is not written down: a linearizable read proves itself, snapshots are taken of what one
      has returned, and observers are drivers, which read so too.
    * The log start is not written down either. It is where a voter's files begin, and a voter needs those from
      the end of its latest snapshot on to count.
    * A read is finished by its first round of listings when they show what is asked for: every listing was
      made after the read began, and a claim that comes after a listing sees what the listing saw.
"""
