"""Snapshots of the metadata log on its voters (KIP-630; protocol section 5, attack V1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.engine.quorum.checkpoints import read_checkpoint
from stratalog.engine.quorum.upkeep import VoterUpkeep, keep_up, log_start_of
from stratalog.partitions.errors import NotControllerError
from stratalog.partitions.paths import CheckpointName, DataName, parse_name
from tests.unit.quorum_harness import CLUSTER, IMPATIENT, Quorum, commit_on_voter_1, config, unreachable
from tests.unit.quorum_snapshots import (
    LAG_MS,
    bases,
    committed,
    ends,
    listing,
    path,
    snapshot,
    takes_no_snapshot,
)

# ----------------------------------------------------------------------------------- taking one


def test_a_snapshot_has_the_end_offset_and_the_epoch_of_the_last_record_it_contains() -> None:
    """KIP-630, "Snapshot Format": `<SnapshotId.EndOffset>-<SnapshotId.Epoch>.checkpoint`, on every voter, the same
    bytes."""
    quorum = Quorum(3)
    log = quorum.log()
    committed(log, 1, 2)
    assert str(snapshot(quorum).snapshot) == "00000000000000000003-0000000002.checkpoint"
    contents = {quorum.stores[b].read(path(quorum, b, CheckpointName(3, 2))) for b in (1, 2, 3)}
    assert len(contents) == 1


def test_a_snapshot_is_the_replay_of_the_log_that_it_covers() -> None:
    quorum = Quorum(3)
    image = committed(quorum.log(), 1, 2, 3)
    snapshot(quorum)
    held = listing(quorum, 2)
    (name,) = held.checkpoints
    state = read_checkpoint(CLUSTER, held.voter, name, held.checkpoints[name])
    assert state.image == image
    assert [tuple(entry) for entry in state.lineage] == [(1, 0), (2, 1)]
    assert state.appended_ms == quorum.clock.now_ms()


def test_a_snapshot_is_taken_once_and_never_changed() -> None:
    quorum = Quorum(3)
    committed(quorum.log(), 1)
    first = snapshot(quorum)
    before = [listing(quorum, b).checkpoints for b in (1, 2, 3)]
    again = snapshot(quorum)
    assert first.snapshot == again.snapshot
    assert [one.created for one in first.voters] == [True, False, False]
    assert [one.copied for one in first.voters] == [False, True, True]
    assert not any(one.created or one.copied for one in again.voters)
    assert [listing(quorum, b).checkpoints for b in (1, 2, 3)] == before


def test_a_snapshot_holds_only_what_is_known_to_be_committed() -> None:
    """ "only up to the high watermark": a batch on a minority is settled first, one way or the other."""
    quorum = Quorum(3)
    commit_on_voter_1(quorum)
    taken = snapshot(quorum)
    for broker in (2, 3):
        assert taken.snapshot.end_offset - 1 in bases(quorum, broker)


# ------------------------------------------------------------------------- the log start moves


@pytest.mark.slow
def test_the_log_starts_at_the_snapshot_before_the_latest() -> None:
    """KIP-630, "When to Increase the LogStartOffset": "There is a snapshot for the topic partition with an end
    offset of X", and all live replicas have it. "When to Delete Snapshots": snapshots below the log start.
    """
    quorum = Quorum(3)
    log = quorum.log()
    committed(log, 1)  # [1, 2)
    assert snapshot(quorum).log_start == 0
    assert bases(quorum) == [0, 1]
    committed(log, 2, 3)
    assert snapshot(quorum).log_start == 2
    for broker in (1, 2, 3):
        assert (ends(quorum, broker), bases(quorum, broker)) == ([2, 4], [2, 3])
    committed(log, 4)
    assert snapshot(quorum).log_start == 4
    for broker in (1, 2, 3):
        assert (ends(quorum, broker), bases(quorum, broker)) == ([4, 5], [4])
    assert quorum.log().read() == log.read()


def test_the_latest_snapshot_is_never_deleted() -> None:
    quorum = Quorum()
    committed(quorum.log(), 1)
    snapshot(quorum)
    for _ in range(3):
        quorum.clock.sleep(LAG_MS / 1000 + 1)
        assert snapshot(quorum).log_start == 2
        assert (ends(quorum), bases(quorum)) == ([2], [])
    assert quorum.log().read().configs == {"segment.bytes": "1"}


def test_an_old_snapshot_is_the_log_start_whichever_replica_lags() -> None:
    """ "LogStartOffset is metadata.start.offset.lag.time.max.ms milliseconds old"."""
    quorum = Quorum(3)
    committed(quorum.log(), 1)
    snapshot(quorum)
    quorum.clock.sleep(LAG_MS / 1000 - 1)
    assert snapshot(quorum).log_start == 0
    quorum.clock.sleep(1)
    assert snapshot(quorum).log_start == 2


def test_a_voter_that_cannot_be_reached_is_not_live_and_holds_nothing_up() -> None:
    """The voter gets the snapshot when it is back, from the next driver that commits."""
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through)
    committed(log, 1)
    through[2].hook = unreachable
    for value in (2, 3, 4):
        committed(log, value)
        done = keep_up(log, quorum.clock, lag_ms=LAG_MS)
    assert done.log_start == 4
    assert [one.failure is None for one in done.voters] == [True, True, False]
    assert bases(quorum, 3) == [0, 1]
    image = committed(quorum.log(), 5)
    assert (ends(quorum, 3), bases(quorum, 3)) == ([5], [0, 1, 5])
    assert quorum.log().read() == image


def test_a_voter_that_takes_no_copy_keeps_its_log() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through)
    committed(log, 1)
    snapshot(quorum)
    through[1].hook = takes_no_snapshot
    committed(log, 2)
    done = keep_up(log, quorum.clock, lag_ms=LAG_MS)
    assert (done.log_start, ends(quorum, 2), bases(quorum, 2)) == (2, [2], [0, 1, 2])
    assert bases(quorum, 1) == [2]


def test_nothing_is_deleted_without_a_live_majority() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    committed(log, 1)
    snapshot(quorum)
    committed(log, 2)
    through = quorum.hooked()
    for store in through[1:]:
        store.hook = takes_no_snapshot
    done = keep_up(quorum.log(through=through), quorum.clock, lag_ms=LAG_MS)
    assert done.log_start == 0
    assert bases(quorum, 1) == [0, 1, 2]


def upkeep(quorum: Quorum, **whole: int) -> VoterUpkeep:
    found = VoterUpkeep(quorum.voters[0])
    found.whole = {CheckpointName(int(end[1:]), 1): made for end, made in whole.items()}
    return found


def test_the_log_start_is_an_end_that_all_live_voters_hold_whole() -> None:
    quorum = Quorum()
    full, lagging = upkeep(quorum, s4=5, s8=5), upkeep(quorum, s8=5)
    assert log_start_of([], 10, 100) == 0
    assert log_start_of([full, full], 10, 100) == 4
    assert log_start_of([full, lagging], 10, 100) == 0
    assert log_start_of([full, lagging], 105, 100) == 8
    assert log_start_of([full, upkeep(quorum, s4=5)], 10, 100) == 0
    assert log_start_of([full, upkeep(quorum)], 1000, 100) == 0


@pytest.mark.slow
def test_claims_below_the_greatest_go_too() -> None:
    """A deleted claim that is made again is below the greatest one: its driver sees that, and starts again."""
    quorum = Quorum(3)
    for seed in range(4):
        committed(quorum.log(seed), seed)
    assert listing(quorum, 1).claims == (1, 2, 3, 4, 5)
    snapshot(quorum)
    assert listing(quorum, 1).claims == (5,)
    zombie = quorum.voters[0]
    assert zombie.claim(2, "zombie")
    assert committed(quorum.log(9), 7) == quorum.log().read()


# ------------------------------------------------------------------------------ zombies (V1)


@pytest.mark.slow
def test_a_covered_name_that_a_zombie_creates_again_is_litter() -> None:
    """Attack V1 on the metadata: D0 has decided on a batch and sleeps; others claim, commit at its offset, take
    snapshots and delete; D0's create succeeds, because the name is free, and does not count."""
    quorum = Quorum(3)
    through = quorum.hooked()
    zombie, log = quorum.log(through=through, patience=IMPATIENT), quorum.log()
    zombie.claim()
    for value in (1, 2, 3):
        committed(log, value)
        snapshot(quorum)
    image = log.read()
    assert 1 not in bases(quorum)
    with pytest.raises(NotControllerError):
        zombie.commit(config(9))
    for voter in quorum.voters:  # the pause comes even after the check of the claims
        voter.create(DataName(1, None, 2), b"zombie")
        voter.create(DataName(0, None, 1), b"zombie")
    assert quorum.log().read() == log.read() == image
    assert committed(quorum.log(), 4).next_offset == image.next_offset + 1
    snapshot(quorum)
    assert min(bases(quorum)) > 1


@pytest.mark.slow
def test_a_claimant_whose_batch_was_helped_and_covered_learns_that_it_is_committed() -> None:
    """The claimant's create comes after the deletion of the file that another driver copied for it."""
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through)
    log.claim()
    done = False

    def covered(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if what == "create" and isinstance(parse_name(name.rsplit("/", 1)[-1]), DataName) and not done:
            done = True
            other = quorum.log()
            other.read()  # the batch is on voter 1; the read copies it to the others
            snapshot(quorum)
            quorum.clock.sleep(LAG_MS / 1000)
            snapshot(quorum)
            assert bases(quorum, 2) == []
        return call()

    through[1].hook = covered
    image = log.commit(config(5))
    assert done
    assert quorum.log().read() == image
    assert log.commit(config(6)) == quorum.log().read()


def test_a_deletion_that_comes_late_takes_nothing_that_counts() -> None:
    quorum = Quorum()
    log = quorum.log()
    committed(log, 1)
    snapshot(quorum)
    committed(log, 2)
    (store,) = through = quorum.hooked()
    done = False

    def meanwhile(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if what == "delete" and not done:
            done = True
            for value in (3, 4):
                committed(log, value)
                snapshot(quorum)
        return call()

    store.hook = meanwhile
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=LAG_MS)
    assert done
    assert quorum.log().read() == log.read()
    assert ends(quorum) == [4, 5]
