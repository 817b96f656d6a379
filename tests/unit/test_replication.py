"""The data plane of the protocol (sections 2 and 3) on memory stores, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog.engine.replication.append import AppendOutcome, NotAppended, append
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.replication.sync import SyncOptions
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    DuplicateSequenceNumberError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    LogGapError,
    StaleBrokerError,
    StorageError,
)
from stratalog.partitions.paths import BROKER_FILE, EpochName, LocalStartName
from stratalog.partitions.producers import ProducerAppend, encode
from stratalog.partitions.rewrites.merge import MergePolicy, plan_merges
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.runner import Outcome, SerialRunner
from stratalog.partitions.segments.reader import forget
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.faulty_store import Faults, FaultyStore
from tests.unit.harness import SCHEMA, OnePartition, batch, sync


def test_an_acknowledged_append_is_on_every_replica_of_the_isr() -> None:
    """Section 2, Append: steps 1 to 7."""
    one = OnePartition(3)
    first = one.append(["a", "b"])
    second = one.append(["c"])
    assert (first.base_offset, first.next_offset) == (0, 2)
    assert (second.base_offset, second.next_offset) == (2, 3)
    for broker in (1, 2, 3):
        assert one.read(broker) == ["a", "b", "c"]


def test_with_acks_leader_a_reader_sees_nothing_until_a_sync_proves_it() -> None:
    """Section 2: ``acks=leader`` stops after step 4 and promises only an attempt."""
    one = OnePartition(2)
    one.append(["a"], acks_all=False)
    assert one.read(1) == []
    assert one.replicas.replica(2).log().log_end == 0


def test_a_repeated_sequence_answers_with_the_first_offsets() -> None:
    """Section 2, Append step 2; KIP-98."""
    one = OnePartition(2)
    first = one.append(["a", "b"], producer="p", sequence=4)
    one.append(["x"])
    again = one.append(["a", "b"], producer="p", sequence=5)
    assert not again.duplicate
    repeated = one.append(["a", "b"], producer="p", sequence=5)
    assert repeated.duplicate
    assert (repeated.base_offset, repeated.next_offset) == (again.base_offset, again.next_offset)
    assert first.base_offset == 0
    assert one.read(1) == ["a", "b", "x", "a", "b"]


def _append_where_the_name_is_taken(by: str, listings: int) -> AppendOutcome:
    """An append of ``p`` whose file finds that an append of ``by`` has taken its name. Then the leader answers
    this many more listings, but accepts no more files.
    """
    leader = FaultyStore(MemoryStore("broker-1", ManualClock()))
    one = OnePartition(stores=[leader])
    rest = iter(range(listings))

    def taken(what: str, name: str, call: Callable[[], Any]) -> Any:
        if what == "commit":
            leader.hook = lambda what, name, call: call()
            one.append(["a"], producer=by, acks_all=False)
            leader.hook = failing
        return call()

    def failing(what: str, name: str, call: Callable[[], Any]) -> Any:
        if what == "commit" or (what == "list" and next(rest, None) is None):
            raise StorageError(f"cannot {what} {name}")
        return call()

    leader.hook = taken
    options = AppendOptions(SCHEMA, False, 1, "zstd", log_append_time=False, producer_expiration_ms=10**12)
    who = ProducerAppend("p", 0, 0, transactional=False)
    return append(one.replicas, who, iter([batch(["a"])]), options, clock=one.clock, copies=SerialRunner())


def test_a_name_that_is_taken_may_be_taken_by_the_append_itself() -> None:
    """``Staged.commit``: False may also be the answer to a repeated request, after the first answer was lost.
    Until a look at the leader, it is unknown whether the append is in its log.
    """
    failed = _append_where_the_name_is_taken(by="p", listings=0)
    assert isinstance(failed, NotAppended)
    assert failed.tried


def test_a_name_that_another_writer_has_says_that_nothing_was_appended() -> None:
    failed = _append_where_the_name_is_taken(by="q", listings=1)
    assert isinstance(failed, NotAppended)
    assert not failed.tried


def test_an_earlier_sequence_is_refused() -> None:
    """Section 2, Append step 2: DUPLICATE_SEQUENCE_NUMBER."""
    one = OnePartition(1)
    one.append(["a"], producer="p", sequence=2)
    with pytest.raises(DuplicateSequenceNumberError, match="producer 'p' has already appended"):
        one.append(["b"], producer="p", sequence=1)


def test_an_older_incarnation_of_a_producer_is_fenced() -> None:
    """Section 2, Append step 2: INVALID_PRODUCER_EPOCH."""
    one = OnePartition(1)
    one.append(["a"], producer="p", epoch=2)
    with pytest.raises(InvalidProducerEpochError):
        one.append(["b"], producer="p", epoch=1, sequence=9)


def test_a_new_leader_takes_over_at_its_log_end_and_followers_truncate_by_lineage() -> None:
    """Section 1, "Truncation is not an operation"; KIP-101."""
    one = OnePartition(3)
    one.append(["a"])
    one.append(["lost"], acks_all=False)  # on the old leader only
    old = one.replicas
    one.elect(2)
    one.append(["b"])
    assert one.read(2) == ["a", "b"]
    assert one.read(1) == ["a", "b"]
    assert len(one.replicas.replica(1).log().dead) == 1
    with pytest.raises(FencedLeaderEpochError):
        one.append(["zombie"], replicas=old)


def test_a_leader_without_the_lineage_of_its_records_does_not_take_over_from_an_older_one() -> None:
    """The leader's newest records would be dead, and their offsets would be assigned again."""
    one = OnePartition(2)
    one.append(["a"])
    one.elect(2)
    one.append(["b"])
    leader = one.replicas.leader
    leader.store.delete([leader.path(EpochName(2))])
    with pytest.raises(CorruptionError, match="holds files of epoch 2, but has joined only 1") as caught:
        one.append(["c"])
    assert caught.value.broker_id == 2


def test_a_wiped_root_is_found_before_anything_on_it_counts() -> None:
    """Section 1: after every listing ``broker.json`` must hold the registered directory id (V3)."""
    one = OnePartition(2)
    one.append(["a"])
    store = one.stores[2]
    store.delete([stored.name for stored in store.list("")])
    one._register(2)
    with pytest.raises(StaleBrokerError, match="register"):
        one.append(["b"])


def test_a_follower_that_is_behind_is_copied_to_in_order() -> None:
    """Section 3, Sync."""
    one = OnePartition(2)
    one.change(isr=(1,))
    for value in "abcdef":
        one.append([value])
    done = one.sync(2)
    assert done.copied_files == 6
    assert one.read(2) == list("abcdef")
    idle = one.sync(2)
    assert idle.copied_files == 0


def test_the_leaders_files_are_looked_into_by_those_who_copy_them() -> None:
    """Section 1: the listing infers an append's end, and the footer must agree; files are not read one after the
    other.
    """
    faults = Faults()
    one = OnePartition(stores=[faults.wrap("leader", MemoryStore("leader")), MemoryStore("follower")])
    one.change(isr=(1,))
    for value in "abcdef":
        one.append([value])
    forget()
    last = one.replicas.leader.log().chain[-1].file.object.name  # its footer has the end of the log
    runs: list[Any] = []
    opened: list[tuple[str, int]] = []

    class Copies(SerialRunner):
        def run(self, *args: Any) -> Iterator[Outcome[Any, Any]]:
            runs.append(args)
            yield from super().run(*args)
            runs.pop()

    def note(uri: str, what: str, name: str) -> None:
        if what == "open" and name != last:
            opened.append((name, len(runs)))

    faults.before = note
    assert sync(one.replicas, 2, SyncOptions(copies=Copies())).copied_files == 6
    assert len({name for name, _ in opened}) == 5
    assert {depth for _, depth in opened} == {2}, "the followers are one run of items, the files of each another"


def test_a_missing_file_in_the_middle_of_a_follower_is_copied_again() -> None:
    """Section 3 step 4, and "a file deleted by hand"."""
    one = OnePartition(2)
    for value in "abc":
        one.append([value])
    replica = one.replicas.replica(2)
    replica.store.delete([replica.path(replica.log().chain[1].name)])
    one.change(isr=(1,))
    assert one.sync(2).copied_files == 1
    assert one.read(2) == list("abc")


@pytest.mark.parametrize("lost", [1, 2], ids=["in the middle", "at the end"])
def test_a_member_of_the_isr_that_has_lost_records_is_damaged_until_it_has_left(lost: int) -> None:
    """Section 1: "the replica is corrupt, leaves the ISR and is healed; it is not silently shorter"."""
    one = OnePartition(2)
    for value in "abc":
        one.append([value])
    replica = one.replicas.replica(2)
    replica.store.delete([replica.path(replica.log().chain[lost].name)])
    with pytest.raises(
        LogGapError, match=f"in sync and lacks offset {lost}, below the high watermark 3"
    ) as caught:
        one.sync(2)
    assert caught.value.broker_id == 2
    one.change(isr=(1,))
    assert one.sync(2).copied_files == 1
    assert one.read(2) == list("abc")


def test_a_follower_knows_what_its_leader_has_lost() -> None:
    """Section 1, and "an older copy of a root": the follower's high watermark is proof against the leader."""
    one = OnePartition(2)
    for value in "abc":
        one.append([value])
    leader = one.replicas.leader
    log = leader.log()
    doomed = [str(log.chain[2].name), *(str(mark) for mark in log.listing.watermarks)]
    leader.store.delete([leader.path(name) for name in doomed])
    with pytest.raises(LogGapError, match="the leader's storage has lost committed records") as caught:
        one.sync(2)
    assert caught.value.broker_id == 1


def test_a_name_with_two_sizes_is_reported() -> None:
    """Section 1: "a name with two sizes is corruption and is reported"."""
    one = OnePartition(2)
    one.append(["a"])
    replica = one.replicas.replica(2)
    name = replica.path(replica.log().chain[0].name)
    data = replica.store.read(name)
    replica.store.delete([name])
    replica.store.create(name, data[:-1])
    one.append(["b"], acks_all=False)
    with pytest.raises(CorruptSegmentError):
        one.sync(2)


def test_merges_are_copied_and_replicas_stay_equal() -> None:
    """Section 3 step 4: a merged segment covers records that the follower has as appends."""
    one = OnePartition(2)
    for value in "abcdef":
        one.append([value])
    leader = one.replicas.leader
    [run] = plan_merges(leader.log(), MergePolicy(10**9, 10**12, 3), 0, one.clock.now_ms())
    merge_run(leader, run, compression="zstd")
    assert len(leader.log().chain) == 1
    assert one.sync(2).copied_files == 1
    assert one.read(1) == one.read(2) == list("abcdef")
    assert [link.name for link in one.replicas.replica(2).log().chain] == [run.segment_name]
    one.append(["g"])
    assert one.read(2) == list("abcdefg")


def test_a_follower_below_the_leaders_local_start_starts_over_there() -> None:
    """Section 3 step 3, OFFSET_OUT_OF_RANGE: the register comes before the first copy (V12)."""
    one = OnePartition(2)
    for value in "abc":
        one.append([value], producer="p", sequence=ord(value))
    leader = one.replicas.leader
    state = leader.producers(leader.log())
    leader.store.create(leader.path(LocalStartName(2)), encode(state))
    follower = one.replicas.replica(2)
    follower.store.delete([stored.name for stored in follower.store.list("") if stored.name != BROKER_FILE])
    one.change(isr=(1,))
    one.sync(2)
    assert follower.log().local_start == 2
    assert one.read(2) == ["c"]
