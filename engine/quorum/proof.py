"""The log that is proven to be committed by listing the voters, for drivers without the right to write.

A linearizable read finishes the work of other drivers: the reader copies their last batch, or claims an epoch and
commits an empty batch. A driver without the right to write can do neither, but can often still answer. It must
prove two facts about a log, from listings that were all made after the read began.

*Nothing beyond that log was committed before the read began.* Committed records are on a majority of the voters,
as files or in a snapshot, and remain there. So a batch was not committed if the voters that have it, plus the
voters that could not be listed, are not a majority. If the last batch of a log was not committed, the driver
removes it from the listings. (The batch may be committed later, but the answer is valid for a moment after the
read began.) The driver repeats this step until the last file of the remaining log may be on a majority. A snapshot
at the end of the log may be on too few voters to prove anything. The driver removes such a snapshot from the
listings if the batches below the snapshot end at the same offset.

*The log is committed*. Any of these proves it:

* this driver has known it to be committed before;
* a snapshot of it is on more voters than a minority can have: snapshots are only made of committed logs, and an
  attacker, who can give any name to a file, controls at most a minority;
* a majority of its voters holds it, and no claimant has left it out. The listings prove the latter if they show a
  batch of every epoch above the log's epoch, up to the greatest epoch claimed on each of these voters, and the
  lineage of each such batch includes the log. (If there is no claim above the log, this is the usual linearizable
  read.)

The third proof is valid because no claimant has left the log out, or ever will. Assume that some did, and take the
first. That claimant claimed its epoch on a voter of this majority, and listed that voter afterwards. If it claimed
after our listing, the claimant saw this log, and so continues it or a later log that contains it, because no
earlier claimant had left this log out. If it claimed before our listing, the listings show a batch of its epoch
whose lineage includes the log; an epoch has one claimant, and a claimant has one lineage. (A batch of every epoch
*number* is needed, not only of the existing claims, because claims below the greatest may have been deleted.)

The third proof is for the state after a driver dies during a commit: the driver's claim is everywhere, its batch
is on a minority, and the batch names the log that the batch continues. If a claimant died before it wrote
anything, reading cannot show whether that claimant had seen the last batch. In that case, a new reader answers
that the committed log is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.state import LogState, greatest_of, is_majority, minority_of
from stratalog.engine.quorum.voter import VoterLook, last_of
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import CheckpointName, DataName

MOST_EPOCHS = 16
"""If there are this many claims above a log, drivers are at work, and another listing is better than further
reading.
"""


class UnprovenError(Exception):
    """Reading alone does not show which records are committed; the message has the reason."""


def committed_of(
    looks: Sequence[VoterLook],
    electorate: Sequence[VoterId],
    greatest: Callable[[Sequence[VoterLook]], LogState],
    is_known: Callable[[LogState], bool],
    lineage_of: Callable[[int], Lineage | None],
) -> LogState:
    """The log that was committed at some moment after the first of the listings, which cover a majority of the
    ``electorate``. ``greatest``: the greatest log that the listings show. ``is_known``: whether a log is known to
    be committed. ``lineage_of``: the lineage of an epoch's batches; None if no voter shows one.

    Raises: UnprovenError; errors of the functions.
    """
    seen = looks
    while True:
        state = greatest(seen)
        if state.end == 0 or set(state.image.voters) != set(electorate):
            raise UnprovenError("the voters are about to change")
        if is_known(state) or _is_frozen(state.snapshot, seen, electorate):
            return state
        if _is_kept(state, seen, electorate, lineage_of):
            return state
        last = greatest_of(seen)
        assert last is not None
        if isinstance(last, DataName) and _may_be_committed(last, seen, electorate):
            raise UnprovenError(_why(last, looks, electorate))
        seen = [_without(last, look) for look in seen]
        if isinstance(last, CheckpointName) and greatest(seen).position != state.position:
            raise UnprovenError(f"the log ends with {last}, which only {_having(last, looks)} shows")


def _is_frozen(name: CheckpointName, looks: Sequence[VoterLook], electorate: Sequence[VoterId]) -> bool:
    """Whether at least one sound voter has the snapshot."""
    having = {look.voter.id for look in looks if name in look.checkpoints}
    return len(having & set(electorate)) > minority_of(electorate)


def _may_be_committed(name: DataName, looks: Sequence[VoterLook], electorate: Sequence[VoterId]) -> bool:
    """Whether a batch may have been committed before the listings. No listing shows a later file."""
    lacking = {look.voter.id for look in looks if name not in look.files}
    return is_majority([voter for voter in electorate if voter not in lacking], electorate)


def _without(name: DataName | CheckpointName, look: VoterLook) -> VoterLook:
    """The listing without the batch, or the snapshot."""
    files = frozenset(file for file in look.files if file != name)
    checkpoints = frozenset(checkpoint for checkpoint in look.checkpoints if checkpoint != name)
    return replace(look, files=files, checkpoints=checkpoints, last=last_of(files, checkpoints))


def _is_kept(
    state: LogState,
    looks: Sequence[VoterLook],
    electorate: Sequence[VoterId],
    lineage_of: Callable[[int], Lineage | None],
) -> bool:
    """Whether a majority of the voters has the log, and every claimant known to these voters continues it."""
    kept = []
    for look in looks:
        above = range(state.epoch + 1, look.claimed_epoch + 1)
        few = len(above) <= MOST_EPOCHS and state.held_by(look)
        if few and all(_includes(state, lineage_of(epoch)) for epoch in above):
            kept.append(look.voter.id)
    return is_majority(kept, electorate)


def _includes(state: LogState, lineage: Lineage | None) -> bool:
    """Whether the log is a prefix of the logs with this lineage."""
    return lineage is not None and lineage.epoch_at(state.end - 1) == state.epoch


def _why(last: DataName, looks: Sequence[VoterLook], electorate: Sequence[VoterId]) -> str:
    claimed = max(look.claimed_epoch for look in looks)
    away = len(electorate) - len({look.voter.id for look in looks} & set(electorate))
    there = f"cannot tell whether {last} is committed: it is on {_having(last, looks)}"
    if away:
        return f"{there}, and {away} of {len(electorate)} voters cannot be read"
    return f"{there}, and the driver that claimed epoch {claimed} has not appended to it yet"


def _having(name: DataName | CheckpointName, looks: Sequence[VoterLook]) -> str:
    return ", ".join(str(look.voter) for look in looks if name in look.files or name in look.checkpoints)
