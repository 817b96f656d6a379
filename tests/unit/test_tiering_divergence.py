"""Two histories of one partition, after an unclean election: only the leader's is in the remote log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present, agreed_end, agreeing, readable
from stratalog.tiering.remote_change import CommittedBatch
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from tests.unit.commit_interleaving import pause, run, schedules, stepped_table
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import segment, table_in, uploaded

BEFORE = Lineage([(1, 0), (3, 10)])
"""The history of leader epoch 3, which loses its records from offset 10 on."""
UNCLEAN = Lineage([(1, 0), (5, 10)])
CLEAN = Lineage([(1, 0), (3, 10), (5, 20)])
"""The history of an election that lost nothing: epoch 5 continues at offset 20."""
OLD, LOST, WON = segment(0, 10), segment(10, 20, epoch=3), segment(10, 15, epoch=5)
GOES_ON = segment(20, 30, epoch=5)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    (tmp_path / "remote").mkdir()
    made = table_in(LocalStore(str(tmp_path / "remote")))
    made.ensure(SCHEMA)
    return made


def under(lineage: Lineage, epoch_now: Callable[[], int] | None = None) -> Histories:
    """A driver's view of this history, while ``epoch_now`` is the epoch in the metadata."""
    return Histories(
        {0: lineage}, lambda: {0: Present(lineage.latest_epoch if epoch_now is None else epoch_now())}
    )


def commit(table: DeltaTopicTable, adds: Sequence[RemoteSegment], histories: Histories) -> CommittedBatch:
    return table.commit([uploaded(add) for add in adds], (), histories)


# ---------------------------------------------------------------------------------- decisions


@pytest.mark.parametrize(
    ("of", "lineage", "end"),
    [
        (segment(0, 10, epoch=1), [(1, 0)], 10),
        (segment(0, 10, epoch=1), [(1, 0), (5, 10)], 10),
        (segment(0, 20, epoch=1), [(1, 0), (5, 10)], 10),  # epoch 1 continued longer in the lost history
        (segment(10, 20, epoch=3), [(1, 0), (5, 10)], 10),  # epoch 3 never was in this one
        (segment(5, 20, epoch=3), [(1, 0), (5, 10)], 5),  # [5, 10) is common, which only its footer shows
        (segment(10, 20, epoch=5), [(1, 0), (5, 10)], 20),
        (segment(10, 20, epoch=1), [(1, 0), (5, 7)], 10),
    ],
)
def test_a_segment_agrees_with_a_history_up_to_the_end_of_its_epoch_there(
    of: RemoteSegment, lineage: list[tuple[int, int]], end: int
) -> None:
    assert agreed_end(of, Lineage(lineage)) == end


def test_segments_behind_one_of_another_history_belong_to_that_history_too() -> None:
    assert agreeing([OLD, LOST], UNCLEAN) == (OLD,)
    assert agreeing([OLD, LOST, segment(20, 30, epoch=5)], UNCLEAN) == (OLD,)
    assert agreeing([OLD, LOST], CLEAN) == (OLD, LOST)
    assert agreeing([], UNCLEAN) == ()


def test_readers_have_what_is_of_the_leaders_history_and_nothing_behind_it() -> None:
    cut = segment(10, 20, epoch=1)
    assert list(readable([OLD, cut, GOES_ON], Lineage([(1, 0), (5, 13)]))) == [(OLD, 10), (cut, 13)]
    assert list(readable([OLD, LOST, GOES_ON], UNCLEAN)) == [(OLD, 10)]
    assert list(readable([OLD, LOST, GOES_ON], CLEAN)) == [(OLD, 10), (LOST, 20), (GOES_ON, 30)]


# ------------------------------------------------------------------------------------ commits


def test_segments_of_a_lost_history_leave_the_table_in_the_version_that_continues(table: DeltaTopicTable) -> None:
    """KIP-405, "Unclean leader election": the new leader uploads from the point where histories agree."""
    commit(table, [OLD, LOST], under(BEFORE))
    done = commit(table, [WON], under(UNCLEAN))
    assert (done.log.version, done.log.of_partition(0)) == (2, (OLD, WON))


def test_they_leave_it_also_where_nothing_is_to_be_uploaded(table: DeltaTopicTable) -> None:
    commit(table, [OLD, LOST], under(BEFORE))
    assert commit(table, [], under(UNCLEAN)).log.of_partition(0) == (OLD,)
    assert commit(table, [], under(UNCLEAN)).log.version == 2, "once"


def test_a_clean_election_removes_nothing(table: DeltaTopicTable) -> None:
    commit(table, [OLD, LOST], under(BEFORE))
    assert commit(table, [GOES_ON], under(CLEAN)).log.of_partition(0) == (OLD, LOST, GOES_ON)


def test_a_deposed_leader_changes_nothing(table: DeltaTopicTable) -> None:
    commit(table, [OLD, WON], under(UNCLEAN))
    done = commit(table, [LOST], under(BEFORE, lambda: 5))
    assert (done.log.version, done.log.of_partition(0)) == (1, (OLD, WON))
    assert (done.listed, done.superseded, done.fenced) == ((), (), (uploaded(LOST),))


def test_the_partitions_of_other_leaders_in_the_batch_continue(table: DeltaTopicTable) -> None:
    other = segment(0, 7, partition=1)
    both = Histories({0: BEFORE, 1: Lineage([(1, 0)])}, lambda: {0: Present(5), 1: Present(1)})
    done = table.commit([uploaded(OLD), uploaded(other)], (), both)
    assert (done.log.of_partition(0), done.log.of_partition(1)) == ((), (other,))


def test_expired_segments_go_whichever_replica_leads(table: DeltaTopicTable) -> None:
    """The log start offset is committed metadata: it is valid in every history."""
    commit(table, [OLD, LOST], under(BEFORE))
    assert table.commit((), [OLD]).log.of_partition(0) == (LOST,)


def test_segments_that_retention_removed_since_the_upload_are_not_added_again(table: DeltaTopicTable) -> None:
    """Its object may be deleted by then. The driver planned before the log start moved."""
    first, second, third = segment(0, 7), segment(7, 9), segment(9, 12)
    lineage = Lineage([(1, 0)])
    commit(table, [first], Histories({0: lineage}, lambda: {0: Present(1)}))
    stale = Histories({0: lineage}, lambda: {0: Present(1, log_start=9)})
    done = commit(table, [first, second, third], stale)
    assert done.log.of_partition(0) == (third,), "what a log start has passed leaves the table with the commit"
    assert done.superseded == (uploaded(first), uploaded(second))
    assert commit(table, [first, second, third], stale).log.version == done.log.version


def test_nothing_is_added_without_the_history_that_it_is_of(table: DeltaTopicTable) -> None:
    for histories in (Histories(), under(UNCLEAN)):
        with pytest.raises(InvalidCallError, match="not part of its leader's history"):
            commit(table, [LOST], histories)
    assert table.load().version == 0


# ------------------------------------------------------------------------- every interleaving


class TwoDrivers:
    """One driver works under epoch 3, another under 5, which is elected at some time."""

    def __init__(self, remote: LocalStore, after: Lineage, adds: Sequence[RemoteSegment]) -> None:
        self.remote, self.after, self.adds = remote, after, adds
        table_in(remote).ensure(SCHEMA)
        commit(table_in(remote), [OLD], under(BEFORE))
        self.epoch = 3
        self.results: dict[int, CommittedBatch] = {}

    def now(self) -> int:
        pause()
        return self.epoch

    def zombie(self) -> None:
        self.results[3] = commit(stepped_table(self.remote, 1), [LOST], under(BEFORE, self.now))

    def elected(self) -> None:
        pause()
        self.epoch = 5
        self.results[5] = commit(stepped_table(self.remote, 2), self.adds, under(self.after, self.now))

    def history(self) -> list[RemoteLog]:
        """The log at each version."""
        log_folder = Path(table_in(self.remote).uri) / "_delta_log"
        table = table_in(self.remote)
        found = []
        for version in range(len(list(log_folder.glob("*.json")))):
            opened = table._open()
            assert opened is not None
            opened.load_as_version(version)
            found.append(table._fold(opened))
        return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "adds"),
    [
        pytest.param(UNCLEAN, (WON,), id="unclean", marks=pytest.mark.nightly),
        pytest.param(UNCLEAN, (), id="unclean, nothing to upload"),
        pytest.param(CLEAN, (LOST, GOES_ON), id="clean", marks=pytest.mark.nightly),
    ],
)
def test_in_every_order_of_a_zombies_steps_and_its_successors_the_leaders_history_wins(
    tmp_path: Path, after: Lineage, adds: tuple[RemoteSegment, ...]
) -> None:
    """Delta's real log; every storage call and every read of the metadata is a point of interleaving."""
    seen: set[tuple[str, ...]] = set()
    count = 0

    def attempt(choices: Sequence[int]) -> list[int]:
        nonlocal count
        folder = tmp_path / str(count)
        folder.mkdir()
        count += 1
        world = TwoDrivers(LocalStore(str(folder)), after, adds)
        left = run([world.zombie, world.elected], choices)
        commit(
            table_in(world.remote), [], under(after)
        )  # the commit of the leader's next run, without new segments
        versions = world.history()
        ends = versions[-1].of_partition(0)
        assert all(each.is_of(after) for each in ends), choices
        wanted = {add.path for add in adds}
        assert wanted <= {each.path for each in ends}, choices
        newest = [max((each.epoch for each in log.of_partition(0)), default=0) for log in versions]
        if 5 in newest:
            later = versions[newest.index(5) :]
            assert all(each.is_of(after) for log in later for each in log.of_partition(0)), choices
        seen.add((*(each.path for each in ends), str(bool(world.results[3].fenced))))
        return left

    assert len(list(schedules(attempt))) == count > 20
    assert len(seen) > (1 if adds else 0)
