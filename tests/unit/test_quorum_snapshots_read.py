"""Reads of snapshots of the metadata log: by drivers without a state or with an old one, and of damaged
snapshots.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.engine.quorum.upkeep import keep_up
from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.paths import CheckpointName, DataName, parse_name
from tests.unit.quorum_harness import IMPATIENT, Quorum, unreachable
from tests.unit.quorum_snapshots import LAG_MS, bases, committed, damage, ends, path, snapshot, takes_no_snapshot

# --------------------------------------------------------------------------------- opening


def test_a_reader_that_knows_nothing_reads_the_latest_snapshot_and_the_tail() -> None:
    """KIP-630, "Loading Snapshots": "When it is booting"."""
    quorum = Quorum()
    log = quorum.log()
    committed(log, *range(50))
    snapshot(quorum)
    image = committed(log, 50, 51)
    before = quorum.stores[1].counts.snapshot()
    assert quorum.log().read() == image
    spent = quorum.stores[1].counts - before
    assert spent.lists == 1
    assert spent.reads <= 1 + 2 + 4  # requests for the root, the tail, and a few ranges of the snapshot
    assert spent.creates == 0


def test_a_driver_whose_place_in_the_log_is_deleted_loads_the_snapshot() -> None:
    """KIP-630, "Handling Fetch Request": a fetch offset below the log start is answered with the latest
    snapshot."""
    quorum = Quorum(3)
    sleeper, log = quorum.log(), quorum.log()
    sleeper.read()
    for value in (1, 2, 3):
        committed(log, value)
        snapshot(quorum)
    assert min(bases(quorum)) > 1
    assert sleeper.read() == log.read()


def test_a_driver_that_is_near_the_end_reads_the_last_batch_and_no_snapshot() -> None:
    quorum = Quorum()
    sleeper, log = quorum.log(), quorum.log()
    sleeper.read()
    committed(log, 1, 2)
    snapshot(quorum)
    image = committed(log, 3)
    (store,) = quorum.stores.values()
    before = store.counts.snapshot()
    assert sleeper.read() == image
    assert (store.counts - before).reads == 1 + 1


def test_a_snapshot_that_only_a_minority_has_covers_the_log_all_the_same() -> None:
    """KIP-630, "Changes to Leader Election": "the latest epoch and end offset for a replica is the latest snapshot
    or replicated log". The driver that froze the snapshot died before the snapshot was copied.
    """
    quorum = Quorum(3)
    image = committed(quorum.log(), 1, 2)
    through = quorum.hooked()
    for store in through[1:]:
        store.hook = takes_no_snapshot
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=LAG_MS)
    assert [ends(quorum, b) for b in (1, 2, 3)] == [[3], [], []]
    assert quorum.log().read() == image
    away = quorum.hooked()
    away[0].hook = unreachable
    assert quorum.log(through=away).read() == image
    assert committed(quorum.log(), 3).next_offset == 4


def test_a_voter_with_a_snapshot_and_no_log_counts() -> None:
    """KIP-630, "Changes to Leader Election": "It is possible for a follower to have a snapshot and an empty
    log"; the log continues at the snapshot's end."""
    quorum = Quorum(3)
    image = committed(quorum.log(), 1)
    quorum.clock.sleep(1)
    snapshot(quorum)
    quorum.clock.sleep(LAG_MS / 1000)
    snapshot(quorum)
    assert [bases(quorum, b) for b in (1, 2, 3)] == [[], [], []]
    assert quorum.log().read() == image
    assert committed(quorum.log(), 2).next_offset == 3
    assert [bases(quorum, b) for b in (1, 2, 3)] == [[2], [2], [2]]


# ------------------------------------------------------------------------------------ damage


def test_a_damaged_snapshot_is_found_and_another_voters_copy_is_used() -> None:
    quorum = Quorum(3)
    image = committed(quorum.log(), 1, 2)
    snapshot(quorum)
    damage(quorum, 1, 3)
    assert quorum.log().read() == image
    assert any("voter 1" in note or "memory://1" in note for note in quorum.notes)


def test_with_every_copy_damaged_the_previous_snapshot_and_the_log_are_used() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    for value in (1, 2, 3):
        committed(log, value)
        snapshot(quorum)
    image = committed(log, 4)
    for broker in (1, 2, 3):
        damage(quorum, broker, 4)
    assert 0 not in bases(quorum)
    assert quorum.log().read() == image
    assert any("the previous snapshot and the log after it are used" in note for note in quorum.notes)


def test_with_the_only_snapshot_damaged_the_error_names_it() -> None:
    quorum = Quorum()
    committed(quorum.log(), 1)
    snapshot(quorum)
    quorum.clock.sleep(LAG_MS / 1000)
    snapshot(quorum)
    damage(quorum, 1, 2)
    with pytest.raises(CorruptionError, match=r"00000000000000000002-0000000002\.checkpoint"):
        quorum.log().read()


@pytest.mark.slow
def test_a_damaged_copy_is_superseded_and_nothing_is_deleted_for_it() -> None:
    """A snapshot is never replaced; the next one is intact."""
    quorum = Quorum(3)
    log = quorum.log()
    committed(log, 1)
    snapshot(quorum)
    committed(log, 2)
    snapshot(quorum)
    damage(quorum, 2, 3)
    taken = snapshot(quorum)
    assert taken.snapshot.end_offset == 4  # an empty batch moved the offset
    assert [len(one.damaged) for one in taken.voters] == [0, 1, 0]
    assert taken.log_start == 0
    assert ends(quorum, 2) == [2, 3, 4]
    committed(quorum.log(), 5)
    healed = snapshot(quorum)
    assert healed.log_start == 4
    assert [len(one.damaged) for one in healed.voters] == [0, 0, 0]
    assert ends(quorum, 2) == [4, 5]


def test_a_damaged_copy_is_superseded_by_the_first_to_commit() -> None:
    quorum = Quorum(3)
    committed(quorum.log(), 1)
    snapshot(quorum)
    damage(quorum, 2, 2)
    through = quorum.hooked()
    done = False

    def overtaken(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if what == "create" and isinstance(parse_name(name.rsplit("/", 1)[-1]), DataName) and not done:
            done = True
            committed(quorum.log(7), 2)
        return call()

    for store in through:
        store.hook = overtaken
    taken = snapshot(quorum, quorum.log(through=through, patience=IMPATIENT))
    assert done
    assert taken.snapshot.end_offset == 3


def test_a_damaged_batch_is_read_from_a_voter_that_a_majority_can_do_without() -> None:
    """Two voters are looked at first: one lags, and the other's copy is damaged."""
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through)
    committed(log, 1)
    through[1].hook = unreachable
    image = committed(log, 2)
    where = path(quorum, 1, DataName(2, None, 2))
    content = quorum.stores[1].read(where)
    quorum.stores[1].delete([where])
    quorum.stores[1].create(where, content[:-1])
    assert quorum.log().read() == image


def test_a_gap_behind_a_snapshot_is_named() -> None:
    quorum = Quorum()
    log = quorum.log()
    committed(log, 1)
    snapshot(quorum)
    committed(log, 2, 3)
    quorum.stores[1].delete([path(quorum, 1, DataName(2, None, 2))])
    with pytest.raises(LogGapError, match="gap at offset 2"):
        quorum.log().read()


def test_history_that_was_read_and_whose_snapshot_is_gone_is_corruption() -> None:
    quorum = Quorum()
    log = quorum.log()
    committed(log, 1)
    snapshot(quorum)
    quorum.clock.sleep(LAG_MS / 1000)
    snapshot(quorum)
    log.read()
    quorum.stores[1].delete([path(quorum, 1, CheckpointName(2, 2))])
    with pytest.raises(CorruptionError, match="lacks committed records"):
        log.read()
