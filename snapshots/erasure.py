"""Erasure of keys from a log with snapshots: the rule, the order of steps, and the invariants. Pure.

A snapshot replaces all records before its end. So an erasure rewrites no record at its offset: it writes a
snapshot without the keys, and the log then starts at the end of that snapshot. The metadata contains neither the
keys nor their digests: only the *bound*, which is the end of the snapshot, and a generation. A condition on the
key selects keys, too. No other condition is accepted, because a snapshot has one record of each key.

The rule
    The erasure is an ``Erasure`` (``stratalog.partitions.erasure``) of all offsets ``[0, bound)``. It has the
    generation g. The bound is the end of a batch, at most the last stable offset. Records from the bound on are
    not erased, not even records of the same keys.

The snapshots that count
    The name and the footer of a snapshot have the generation of the last erasure that it follows. Only a
    snapshot of exactly the generation in the metadata is *current*: readers use it, followers copy it, and the
    log start moves because of it. An older snapshot is *outdated*, wherever it appears: on a replica that was
    away, or made by a slow job that read the keys before the erasure. The next job that cleans the replica
    deletes it. A snapshot of a greater generation is not used either, because no erasure in the metadata made it.

    A run numbers its erasure before it writes: it raises the partition epoch by one, which only one run can do,
    and takes the number that the next change of the partition will have (``next_generation``). The metadata
    accepts the erasure only as that next change. So the snapshots of two runs never have the same generation. If
    the partition changes first, the snapshot of the run can never become current (``is_abandoned``), and is
    deleted.

The order of steps
    1. The keys are searched in the latest snapshot of the leader, and in its log. Without any, nothing is made. If
       that snapshot is damaged or missing, the leader first gets a copy from another replica. Without a snapshot
       that replaces all records before the leader's log, the erasure fails, and nothing is made.
    2. A snapshot is made, as ``stratalog snapshot`` makes it, up to the last batch before the last stable
       offset. It is never a first snapshot that lacks records (``SnapshotWork.complete``), because the erasure
       would replace the snapshot that has them. If it ends below a record that step 1 has found, as on a leader
       that has lost its high watermark, the run begins again.
    3. The partition epoch is raised. That gives the erasure its generation.
    4. The leader writes that snapshot again, under this generation, without the keys and their tombstones.
       Every member of the ISR, and every replica being added, copies it, and verifies every byte. A member that
       cannot is removed from the ISR, and the run begins again at step 1.
    5. One commit adds the erasure and moves the log start to the bound, if the partition has not changed since
       step 3. From then on no snapshot and no record from before the erasure is used.
    6. The local log start of each replica moves to the bound. A file that a late merge has made across the
       bound is rewritten, as in other topics.
    7. The files before the bound, and all outdated snapshots, are deleted after ``file.delete.delay.ms``. A
       current snapshot with the keys is deleted that long after the first later one without them.
    8. The offsets are forgotten when every replica was cleaned, and the published table. The generation stays.
       Until then, the topic cannot stop having snapshots.

The published table
    A topic may publish its snapshots as a Delta table (``stratalog.tiering.snapshot_table``). The table is derived
    from the leader's snapshots, so it follows the erasure after the brokers do. Each file of the table, which
    other programs read, has the generation of its snapshot in its name.

    1a. Before step 1, the keys are searched in every object of the table. If one has them, the partition gets an
        erasure, even if step 1 finds nothing. So after step 5, every object that has the keys, and that a run has
        written, has an older generation. After a restore, objects of the former cluster may have any generation: a
        run takes no number at step 3 that an object has.
    6a. After step 6, the leader's latest snapshot is written to the folder of the table, and one version of the
        table lists that file instead of the previous one. This is done in every run in which the leader's snapshot
        is not the table's, even if nothing was found. Files that other programs have added leave the table.
    7a. The folder and then the table are read again. Every other object whose generation is another one is
        deleted, if three conditions hold: the table lists a file of each partition with an erasure, all its files
        are there and have the present generations, and none of them has the keys. If not, nothing is deleted, and
        the report names the file. Without the first condition, a job that publishes a partition for the first time
        could list its file after it was deleted. A file that the table has removed is deleted
        ``file.delete.delay.ms`` after that, rounded up to hours, or immediately with ``--now``. One that it never
        listed is deleted immediately, because the table would refuse it. If its generation is greater than the
        present one, another run may be about to list it, so it waits for a day. Objects that other programs have
        written are deleted after the table has removed them; any other is reported.
    7b. When no such object is left, a checkpoint of the newest version is written, and every older file of the
        table's log is deleted. Entries of this product have no value of a key. Those of other programs may, in
        statistics and commit infos: if the newest version is theirs, an empty version is committed first. The
        checkpoint copies their removals, which may have statistics, tags and partition values: if so, a version
        removes the same files again, without these. Time travel to an older version fails, because its entries are
        gone.

    A run that cannot read the remote tier, or the table, fails before step 1, and changes nothing. If the remote
    tier goes away later, the table is reported as not erased, and a later run does the rest without the keys. If
    the work on one partition fails, nothing is deleted from the table. A topic that no longer publishes is refused
    while objects of its table are left (``vacuum`` deletes them). Its folder is listed again in the end, and an
    upload in progress is reported, too. The commits of steps 3 and 5 are refused if publishing was switched on or
    off since the run began.

    A slow job that read its snapshot before the erasure may commit its file later. The commit reads the table,
    and then the metadata, and adds only files of the generation in the metadata. If the metadata that it reads are
    from before step 5, there are two cases. If it takes its version before step 6a does, that step replaces its
    file. If step 6a has taken that version, it reads both again. If step 7b has deleted the entry of that version
    meanwhile, the job may write the entry again. No reader reads an entry before the checkpoint; the entry names
    an object, and has no value of a key; the next erasure deletes it. Before the job gives its file a name, it
    lists the leader, as before a snapshot gets its name. An upload in progress is reported as not erased. A single
    PUT in flight is the exception of E2: ``verify --erased`` finds its object, and a later run with the keys
    deletes it.

    Another program may rewrite the table at any time. A version that it commits after step 6a has only rows that
    step 6a has listed, or rows of its own: these are found at step 7a or 7b, and then nothing is deleted, or only
    objects that the table does not list. The next publication replaces its files, all in one version
    (``SnapshotTable.commit``). A RESTORE to a version before step 6a may list objects that step 7a deletes. Step
    7b finds it, deletes no history, and reports it. A table that another program has partitioned, or made
    unwritable, is created again at step 6a, if each partition that was ever published gets a file from its leader.

    A cluster that was restored has no erasure in its metadata, and takes the table over. It replaces files of any
    other generation by its own. Until its first snapshot, the table has records that its brokers lack. If they are
    records of the keys, an erasure fails for want of a snapshot, and nothing is deleted.

A crash
    Before step 5, the log and its snapshots are unchanged, and still have the keys. The next run needs the keys,
    and begins again. The snapshot of step 4 is litter, which the next change of the partition abandons.
    After step 5, the next run needs no keys: the metadata has the bound.
    Before the version of step 6a, the table lists a file of an older generation, which the next run replaces. A
    file that was written and not listed follows the erasure. After that version, a walk shows the objects that are
    left, and the table's log the entries.

A slow job
    A job that has read the keys must not name a snapshot when the erasure is complete: a job that makes a
    snapshot, a follower that fetches one, or another erasure, which writes one again. Before the name, and before
    each piece that is fetched, the leader is listed.

    - A generation that is greater than the next one of the job's view proves that a run has done step 3 since
      (``proves_change``). The next generation itself proves nothing: the run may have ended before step 5, and
      its litter would stop all jobs.
    - A job with a view from between steps 3 and 5 has read the snapshot of step 2, or a later one. This snapshot
      must still be there: a complete erasure has deleted it. If the erasure deletes it later, it searches the
      roots after that, and finds the new name, or the job's unfinished file.

    The job then begins again under the present view. A second read of the metadata would be no closer to the name,
    and the tasks that make snapshots have no access to the metadata. The exception of E2 applies: a single PUT in
    flight.

Replicas
    Elections after step 5 choose members of the ISR, which have the current snapshot. An election that may lose
    records is refused until step 8. A replica that was away has records before the bound in its log, so no read
    uses it (``nearest.follower_log``). Before it joins the ISR, a sync gives it the current snapshot. Heal and
    repair copy current snapshots only. An outdated snapshot is not damage.

Readers
    A reader that has not yet read up to the bound finds the log start after its position. It starts from the
    snapshot, as after every move of the log start.

Invariants
    S1  after step 5, no reader, follower, election or log start uses a snapshot that does not follow the
        erasure
    S2  after an erasure is reported complete, no file on any root has a record of the keys from before the
        bound. The exception of E2 (``stratalog.partitions.erasure``) applies
    S3  the latest record of every other key is the same before and after, in the published table, too
    S4  after an erasure is reported complete, no object in the folder of the published table has a record of the
        keys from before the bound, or a value taken from one. The exceptions of E2 and E4
        (``stratalog.tiering.erasure``) apply. The checkpoint keeps the names that other programs have chosen:
        their properties, and for 30 days the paths of their removed files
"""

from __future__ import annotations


def next_generation(partition_epoch: int) -> int:
    """The generation of an erasure that is committed as the next change of a partition with this epoch."""
    return partition_epoch + 1


def proves_change(generation: int, partition_epoch: int) -> bool:
    """Whether a snapshot of this generation proves that the partition has changed since it had this epoch: a run
    has numbered an erasure since.
    """
    return generation > next_generation(partition_epoch)


def is_abandoned(generation: int, partition_epoch: int) -> bool:
    """Whether a snapshot of a generation that the metadata do not have can never become current, because the
    partition has changed since.
    """
    return generation <= partition_epoch
