"""Schedules against the protocol: zombies, deleted names, lost folders, and the invariants.

K is the leader, F and G follow; ``2.1`` is the append with base 2 and epoch 1. V1 to V13 are the schedules of the
attack on the protocol; schedules of single modules are beside the tests of these modules.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.replication.leader import leader_log
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import CorruptSegmentError, FencedLeaderEpochError, LogGapError, StorageError
from stratalog.partitions.paths import DataName, EpochName, LocalStartName, WatermarkName
from stratalog.partitions.producers import encode
from stratalog.partitions.replica import Replica
from stratalog.partitions.retention import removable
from stratalog.partitions.rewrites.merge import MergePolicy, Run, plan_merges
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.cluster_harness import LiveCluster, codes, rows_of
from tests.unit.faulty_store import Faults
from tests.unit.harness import OnePartition

ALL = MergePolicy(segment_bytes=10**9, segment_ms=10**12, min_files=2)


class Staged(OnePartition):
    """One partition whose storage calls can be interrupted."""

    def __init__(self, brokers: int = 2) -> None:
        self.faults, clock = Faults(), ManualClock()
        plain: list[Store] = [MemoryStore(f"memory://b{n}", clock) for n in range(1, brokers + 1)]
        super().__init__(stores=[self.faults.wrap(store.uri, store) for store in plain])
        self.clock = clock

    def once(self, broker: int, what: str, ending: str, act: Callable[[], object]) -> None:
        """``act`` happens before the first such call on a broker, whose caller is a zombie from then on."""

        self.faults.once(act, what, at=f"memory://b{broker}", ending=ending)

    def replica(self, broker: int) -> Replica:
        return self.replicas.replica(broker)

    def retain(self, broker: int, start: int) -> None:
        """Local retention, without a delay."""
        replica = self.replica(broker)
        replica.store.create(replica.path(LocalStartName(start)), encode({}))
        self.vacuum(broker)

    def vacuum(self, broker: int) -> list[str]:
        """Delete everything that may be deleted, without a delay; returns the names."""
        replica = self.replica(broker)
        names = removable(replica.log(), self.clock.now_ms(), 0)
        replica.store.delete([replica.path(name) for name in names])
        return names

    def merge(self, broker: int, compression: str = "zstd") -> DataName:
        """Merge everything below the high watermark into one segment."""
        replica = self.replica(broker)
        [run] = plan_merges(replica.log(), ALL, 0, self.clock.now_ms())
        merge_run(replica, run, compression=compression)
        return run.segment_name

    def lose_folder(self, broker: int) -> None:
        """Delete the folder of a replica; the root stays."""
        replica = self.replica(broker)
        replica.store.delete([stored.name for stored in replica.store.list(replica.folder)])


def data(base: int, epoch: int) -> str:
    return str(DataName(base, None, epoch))


# --------------------------------------------------------------- a deleted name is free again


@pytest.mark.parametrize("how", ["retention", "merge"])
def test_v1_an_append_under_a_freed_name_is_appended_again_and_not_acknowledged(how: str) -> None:
    """A lists K and sleeps. B appends 1.1, acknowledged; retention (or a merge and a vacuum) deletes it. A's
    create of 1.1 succeeds, and does not count: A looks again, and appends after B.
    """
    one = Staged()
    one.append(["a"])

    def meanwhile() -> None:
        one.append(["b"])
        if how == "retention":
            one.retain(1, 2)
        else:
            one.merge(1)
            one.vacuum(1)
        assert data(1, 1) not in {str(name) for name in one.replica(1).log().names()}

    one.once(1, "commit", data(1, 1), meanwhile)
    appended = one.append(["A"])
    assert (appended.base_offset, appended.duplicate) == (2, False)
    assert one.read(1)[-1] == "A"
    one.elect(2)
    leader_log(one.replicas)
    one.sync(1)
    assert one.read(2) == ["a", "b", "A"]
    assert one.read(1) == (["A"] if how == "retention" else ["a", "b", "A"])


def test_v2_a_copy_is_of_the_file_that_was_listed_and_not_of_its_name() -> None:
    """A sync of F lists K with B's 1.1, and sleeps. Retention deletes 1.1 on K, and the zombie A creates its own
    1.1. F must not get A's bytes under that name.
    """
    one = Staged()
    one.append(["a"])
    one.append(["b"], acks_all=False)

    def meanwhile() -> None:
        one.replica(1).store.create(one.replica(1).path(WatermarkName(2, 1)), b"")
        one.append(["c"], acks_all=False)
        one.retain(1, 2)
        one.replica(1).store.create(one.replica(1).path(data(1, 1)), b"the zombie's")

    one.once(2, "stage", data(1, 1), meanwhile)
    one.change(isr=(1,))
    one.sync(2)
    replica = one.replica(2)
    held = [replica.store.read(file.object.name) for file in replica.log().listing.data]
    assert b"the zombie's" not in held
    assert one.replica(2).log().local_start == 2
    assert one.replica(2).log().log_end == 3


def test_a_zombies_file_under_a_freed_name_is_no_damage_of_a_replica() -> None:
    """K's retention freed the name 1.1, and A's late create put other bytes there, below K's local start. F, which
    still has the first 1.1, leads; K follows, and stays in sync.
    """
    one = Staged()
    for value in "abc":
        one.append([value])
    one.retain(1, 2)
    one.replica(1).store.create(one.replica(1).path(data(1, 1)), b"the zombie's")
    one.elect(2)
    one.append(["d"])
    assert one.read(1) == ["c", "d"]


def test_a_zombies_file_below_a_merged_segment_is_no_damage_of_a_replica() -> None:
    """The schedule is as above, with a merge and a vacuum on K instead of its retention."""
    one = Staged()
    for value in "abc":
        one.append([value])
    one.merge(1)
    one.vacuum(1)
    one.replica(1).store.create(one.replica(1).path(data(1, 1)), b"the zombie's")
    one.elect(2)
    one.append(["d"])
    assert one.read(1) == list("abcd")


def test_segments_that_two_leaders_merged_with_other_settings_are_no_damage() -> None:
    """K merges [0, 4), and F leads before it has the segment; compression.type is changed; F merges the same
    offsets. The name then has two sizes, and both are right.
    """
    one = Staged()
    for value in "abcd":
        one.append([value * 100])
    name = one.merge(1)
    one.elect(2)
    assert one.merge(2, "none") == name
    one.append(["e"])
    assert one.read(1) == one.read(2) == ["a" * 100, "b" * 100, "c" * 100, "d" * 100, "e"]


def test_a_merged_segment_that_was_cut_is_damage() -> None:
    """The schedule is as above, but F's segment has lost its end."""
    one = Staged()
    for value in "abcd":
        one.append([value])
    name = one.merge(1)
    one.sync(2)
    path = one.replica(2).path(name)
    content = one.replica(2).store.read(path)
    one.replica(2).store.delete([path])
    one.replica(2).store.create(path, content[:-9])
    with pytest.raises(CorruptSegmentError) as caught:
        one.sync(2)
    assert caught.value.broker_id == 2


# ------------------------------------------------------------------------ lineages and vacuums


def test_v6_what_is_dead_above_the_high_watermark_outlives_a_vacuum() -> None:
    """1.1 is on K and G, not acknowledged. F leads epoch 2 without it, K joins epoch 2, and vacuum looks at K. G
    leads epoch 3 with it, and K's 1.1 is live again: a vacuum that had deleted it would leave K in the ISR with a
    shorter log.
    """
    one = Staged(3)
    one.append(["a"])
    one.append(["b"], acks_all=False)
    one.change(isr=(1, 3))
    one.sync(3)
    one.change(isr=(1, 2, 3))
    one.elect(2)
    leader_log(one.replicas)
    one.sync(1)
    assert one.replica(1).log().log_end == 1
    assert data(1, 1) not in one.vacuum(1)
    one.elect(3)
    one.append(["c"])
    assert one.read(1) == one.read(2) == one.read(3) == ["a", "b", "c"]


def test_v10_replicas_that_merged_differently_follow_each_other() -> None:
    """Two drivers merge [1, 3) and [0, 2) of K at once; F merged [0, 3) as a leader. No offset is read twice."""
    one = Staged()
    for value in "abcd":
        one.append([value])
    chain = one.replica(1).log().chain
    late = Run(chain[0:2])
    one.once(
        1, "commit", str(late.segment_name), lambda: merge_run(one.replica(1), Run(chain[1:3]), compression="zstd")
    )
    merge_run(one.replica(1), late, compression="zstd")
    one.vacuum(1)
    assert [str(link.name)[:20] for link in one.replica(1).log().chain] == [f"{base:020}" for base in (0, 1, 3)]
    assert one.read(1) == list("abcd")
    one.elect(2)
    merge_run(one.replica(2), Run(one.replica(2).log().chain[0:3]), compression="zstd")
    one.vacuum(2)
    one.append(["e"])
    assert one.read(1) == one.read(2) == list("abcde")
    one.elect(1)
    one.append(["f"])
    assert one.read(1) == one.read(2) == list("abcdef")


def test_v12_a_follower_that_died_after_it_started_over_has_no_hole() -> None:
    """F holds 0.1, K's log starts at 2. F starts over, and the driver dies before the first copy; or after it."""
    for copied in (0, 1):
        one = Staged()
        one.append(["a"])
        one.change(isr=(1,))
        for value in "bcd":
            one.append([value])
        one.retain(1, 2)

        def die() -> None:
            raise StorageError("the driver is dead")

        one.once(2, "commit", data(2 + copied, 1), die)
        with pytest.raises(StorageError):
            one.sync(2)
        log = one.replica(2).log()
        assert (log.local_start, log.log_end) == (2, 2 + copied)
        one.sync(2)
        assert one.read(2) == ["c", "d"]


def test_a_zombie_of_an_older_epoch_reaches_no_follower_that_has_joined_a_later_one() -> None:
    """A of epoch 1 has created 1.1 on K and sleeps before its sync. F leads epoch 2, and G has joined it. A stops
    there.
    """
    one = Staged(3)
    one.append(["a"])
    old = one.replicas
    one.append(["A"], acks_all=False)
    one.elect(2)
    one.append(["b"])
    with pytest.raises(FencedLeaderEpochError):
        one.append(["B"], replicas=old)
    assert one.read(2) == one.read(3) == ["a", "b"]
    one.sync(1)
    assert one.read(1) == ["a", "b"]


def test_a_sync_of_an_older_epoch_leaves_nothing_that_lives() -> None:
    """A sync of F from K under epoch 1 sleeps before it gives 1.1 its name. F leads epoch 2 from offset 1 on. The
    file gets its name, and is dead.
    """
    one = Staged(3)
    one.append(["a"])
    one.append(["A"], acks_all=False)

    def meanwhile() -> None:
        one.elect(2, isr=(2, 3))
        one.append(["b"])

    one.once(2, "commit", data(1, 1), meanwhile)
    old = one.view
    one.sync(2)
    assert old.leader == 1
    assert data(1, 1) in {str(file.name) for file in one.replica(2).log().dead}
    assert one.read(2) == one.read(3) == ["a", "b"]


def test_an_epoch_that_nobody_has_taken_over_ends_nothing() -> None:
    """F is elected, and then K again before any driver looked at F: epoch 2 is in no lineage."""
    one = Staged(3)
    one.append(["a"])
    one.append(["b"], acks_all=False)
    one.elect(2)
    one.elect(1)
    one.append(["c"])
    assert one.read(1) == one.read(2) == one.read(3) == ["a", "b", "c"]
    assert [tuple(entry) for entry in one.replica(3).log().lineage] == [(1, 0), (3, 2)]


# ------------------------------------------------------------------------------- lost folders


@pytest.mark.parametrize("records", [1, 3, 10], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("acks_all", [True, False], ids=["acks=all", "acks=leader"])
def test_a_leader_whose_folder_was_lost_gives_no_offset_away_again(records: int, acks_all: bool) -> None:
    """K has acknowledged [0, 3). Its folder is deleted; the root stays. The next append finds an empty leader that
    joined no epoch, while F has joined this one. If a driver took over again, other records would get the offsets
    0 to 3, under a name that F has. F and G would then be called damaged because of the difference or, if the
    records have as many bytes, no replica would.
    """
    one = Staged(3)
    one.append(["a", "b", "c"])
    one.lose_folder(1)
    with pytest.raises(LogGapError, match="has already joined") as caught:
        one.append([str(n) for n in range(records)], acks_all=acks_all)
    assert caught.value.broker_id == 1
    assert not one.replica(1).log().listing.data
    one.elect(2, isr=(2, 3))
    one.append(["d"])
    one.sync(1)
    assert one.read(1) == one.read(2) == list("abcd")


def test_a_member_whose_folder_was_lost_does_not_lead_the_others_to_nothing() -> None:
    """F has lost its folder unnoticed, and is elected. If it took over at its log end, 0, the records of K and G
    would be dead.
    """
    one = Staged(3)
    one.append(["a", "b"])
    one.lose_folder(2)
    one.elect(2)
    with pytest.raises(LogGapError, match="high watermark reached 2") as caught:
        leader_log(one.replicas)
    assert caught.value.broker_id == 2
    one.elect(3, isr=(1, 3))
    one.append(["c"])
    one.sync(2)
    assert one.read(1) == one.read(2) == one.read(3) == list("abc")


def test_two_take_overs_at_once_are_one_and_nobody_is_blamed() -> None:
    """A has looked at K, which has not joined epoch 2 yet, and sleeps before it looks at the members. B takes
    over, and F joins. A sees that F has joined epoch 2, looks at K once more, and finds that K has joined it, too.
    """
    one = Staged()
    one.append(["a"])
    one.elect(1)
    one.once(2, "list", "", lambda: one.append(["b"]))
    assert leader_log(one.replicas).log_end == 2
    assert one.replica(1).path(EpochName(2)) in {stored.name for stored in one.stores[1].list("")}


def test_a_leader_that_went_back_in_time_is_found_by_the_high_watermark_that_it_wrote_first() -> None:
    """K has lost the files of its last append, including the high watermark; the next append is as long. K's log
    ends where F's does. Only the register of this epoch, which a leader writes before its followers, distinguishes
    them.
    """
    one = Staged()
    one.append(["a"])
    one.append(["b"])
    replica = one.replica(1)
    replica.store.delete([replica.path(data(1, 1)), replica.path(WatermarkName(2, 1))])
    with pytest.raises(LogGapError, match="its high watermark is 1") as caught:
        one.append(["B"])
    assert caught.value.broker_id == 1
    one.elect(2, isr=(2,))
    leader_log(one.replicas)
    assert one.read(2) == ["a", "b"]


def test_a_lost_folder_of_a_leader_costs_a_cluster_nothing(tmp_path: Path) -> None:
    """The schedule is as above, but with the operations: the append uses another leader, and replicate restores
    the old one.
    """
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b", "c"]).raise_for_failures()
    old = live.replica(live.leader())
    old.store.delete([stored.name for stored in old.store.list(old.folder)])
    report = live.append(["d"] * 10)
    assert rows_of(report, "outcome", "base_offset") == [("acknowledged", 3)]
    assert any(f"broker {old.broker_id} leaves the ISR" in note for note in report.notes)
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.read() == {0: [*"abc", *["d"] * 10]}
    live.cluster.verify().raise_for_failures()


# ---------------------------------------------------------------------------------- outcomes


def test_an_append_that_cannot_ask_the_metadata_any_more_has_an_unknown_outcome(tmp_path: Path) -> None:
    """The records are in the leader's log; then the metadata is unreachable. An error that says "try again" would
    make the caller append them twice, because nothing would distinguish the second append from another.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    away: list[str] = []

    def before(uri: str, what: str, name: str) -> None:
        if away and "__cluster_metadata" in name:
            raise StorageError(f"{uri} is away")

    def after(uri: str, what: str, name: str) -> None:
        if what == "commit":
            away.append(name)

    faults.before, faults.after = before, after
    report = live.append(["a"])
    faults.none()
    assert [row["outcome"] for row in report.rows] == ["unknown"]
    (note,) = [note for note in report.notes if "run the append again with producer" in note]
    producer = note.split("'")[1]
    report = live.append(["a"], producer=producer)
    assert rows_of(report, "outcome", "base_offset") == [("duplicate", 0)]
    assert live.read() == {0: ["a"]}


# ------------------------------------------------------------------------- unclean elections


def test_a_moved_root_is_not_given_up_by_an_unclean_election_by_itself(tmp_path: Path) -> None:
    """The only replica's disk is replaced by a copy of it: another incarnation, with an empty folder. The topic
    allows unclean elections; an automatic one would lose everything, although an operator could trust the copy.
    """
    live = LiveCluster(tmp_path, on_disk=True)
    names = [f"t{number}" for number in range(1, 9)]
    for name in names:
        live.topic(name, copies=1, unclean_leader_election_enable="true")
        live.append(["a", "b"], name).raise_for_failures()
    topic = next(name for name in names if live.leader(name) == 2)
    shutil.copytree(live.root(2), tmp_path / "copy")
    shutil.rmtree(live.root(2))
    (tmp_path / "copy").rename(live.root(2))
    report = live.driver().replicate(check=False)
    assert any("no automatic unclean election: broker 2" in note for note in report.notes)
    live.driver().bootstrap(2, trust_copy=True).raise_for_failures()
    live.cluster = live.driver()
    assert live.read(topic) == {0: ["a", "b"]}


def test_retention_by_the_log_of_a_leader_that_was_given_up_deletes_nothing_of_the_next_one(
    tmp_path: Path,
) -> None:
    """Retain has looked at K, which alone has [0, 6), and sleeps before its commit. K is fenced, F is elected
    uncleanly at offset 1, and acknowledges a record there. K's log start, 5, is not F's.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(copies=2, retention_bytes="1")
    live.append(["a"]).raise_for_failures()
    leader, [follower] = live.leader(), live.followers()
    live.cluster.brokers.fence(follower)
    live.fill("bcdef")
    other = live.driver()

    def replace_leader() -> None:
        other.brokers.fence(leader, force=True)
        other.brokers.unfence(follower)
        other.elect(unclean=True).raise_for_failures()
        live.append(["x"], driver=other).raise_for_failures()

    faults.once(replace_leader, "create", of="__cluster_metadata")
    report = live.cluster.retain(check=False)
    assert codes(report) == {"FENCED_LEADER_EPOCH": 1}
    assert live.replicas().view.log_start_offset == 0
    assert live.read() == {0: ["a", "x"]}
