"""``__consumer_offsets`` as a fold: the laws of state machines, stale members, expiry (KIP-630, KIP-848)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.state import consumer_offsets
from stratalog.engine.state.consumer_offsets import (
    ConsumerOffsets,
    EndTransaction,
    ForgetGroup,
    ForgetOffset,
    ForgetProducer,
    GroupMetadata,
    OffsetCommit,
    OffsetsRecord,
    OffsetTombstone,
    PendingOffset,
    ProducerMetadata,
)
from stratalog.engine.state.internal_topics import java_hash, partition_for
from stratalog.engine.state.keyed import OFFSETS
from stratalog.partitions.errors import CorruptionError
from stratalog.snapshots.policy import changed_records
from stratalog.snapshots.state_machine import Codec
from tests.unit.state_machine_laws import Subject, check_laws

SUBJECT = Subject(ConsumerOffsets(), ConsumerOffsets.load, Codec(consumer_offsets.encode, consumer_offsets.decode))


def commit(
    offset: int,
    group: str = "g",
    topic_id: str = "t",
    partition: int = 0,
    *,
    expires_ms: int = 100,
    member_epoch: int | None = None,
) -> OffsetCommit:
    return OffsetCommit(
        group=group,
        topic_id=topic_id,
        partition=partition,
        offset=offset,
        commit_ms=expires_ms - 100,
        expires_ms=expires_ms,
        member_epoch=member_epoch,
    )


def pending(
    offset: int, epoch: int = 0, group: str = "g", producer: str = "p", partition: int = 0
) -> PendingOffset:
    held = commit(offset, group, partition=partition)
    return PendingOffset(group=group, producer_id=producer, producer_epoch=epoch, commit=held)


def end(epoch: int, *, committed: bool = True, producer: str = "p", expires_ms: int = 500) -> EndTransaction:
    return EndTransaction(producer_id=producer, producer_epoch=epoch, committed=committed, expires_ms=expires_ms)


GROUPS, TOPICS = st.sampled_from(["g", "h", "ü"]), st.sampled_from(["t", "u"])
PRODUCERS = st.sampled_from(["p", "q"])
PARTITIONS, TIMES, SEEN = st.integers(0, 2), st.integers(100, 130), st.integers(0, 40)
RECORDS: st.SearchStrategy[OffsetsRecord] = st.one_of(
    st.builds(
        commit,
        st.integers(0, 9),
        GROUPS,
        TOPICS,
        PARTITIONS,
        expires_ms=TIMES,
        member_epoch=st.none() | st.integers(0, 3),
    ),
    st.builds(OffsetTombstone, group=GROUPS, topic_id=TOPICS, partition=PARTITIONS),
    st.builds(ForgetOffset, group=GROUPS, topic_id=TOPICS, partition=PARTITIONS, seen=SEEN, pending=st.booleans()),
    st.builds(ForgetGroup, group=GROUPS, seen=SEEN, pending=st.booleans()),
    st.builds(pending, st.integers(0, 9), st.integers(0, 3), GROUPS, PRODUCERS, PARTITIONS),
    st.builds(end, st.integers(1, 4), committed=st.booleans(), producer=PRODUCERS, expires_ms=TIMES),
    st.builds(ForgetProducer, producer_id=PRODUCERS, producer_epoch=st.integers(0, 4)),
)


@pytest.mark.slow
@given(st.lists(RECORDS, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_snapshot_may_be_anywhere(log: list[OffsetsRecord], cuts: list[int]) -> None:
    """KIP-630, "Loading Snapshots"."""
    check_laws(SUBJECT, log, cuts)


@given(RECORDS)
def test_a_record_is_a_row_and_back(record: OffsetsRecord) -> None:
    assert consumer_offsets.decode(*consumer_offsets.encode(record)) == record


def state_after(*log: OffsetsRecord) -> ConsumerOffsets:
    return ConsumerOffsets().apply(0, log)


def offsets(state: ConsumerOffsets, group: str = "g") -> dict[tuple[str, int], int]:
    return {key: record.offset for key, record in state.groups[group].offsets.items()}


def test_the_last_commit_of_a_partition_counts() -> None:
    state = state_after(commit(3), commit(1), commit(7, partition=1), commit(9, "h"))
    assert offsets(state) == {("t", 0): 1, ("t", 1): 7}
    assert offsets(state, "h") == {("t", 0): 9}


def test_a_stale_member_counts_for_nothing_wherever_it_is() -> None:
    """KIP-848, STALE_MEMBER_EPOCH: the log decides which was first, for all partitions of the group."""
    stale = [commit(9, partition=partition, member_epoch=1) for partition in (0, 1)]
    state = state_after(commit(3, member_epoch=2), *stale)
    assert offsets(state) == {("t", 0): 3}
    assert offsets(state.apply(3, [commit(4, member_epoch=2)])) == {("t", 0): 4}
    assert state.apply(3, [commit(5, member_epoch=3)]).groups["g"].member_epoch == 3


def test_a_commit_without_a_member_is_never_stale() -> None:
    """A tool that resets offsets is an example."""
    assert offsets(state_after(commit(3, member_epoch=2), commit(0))) == {("t", 0): 0}


def test_a_group_expires_with_its_latest_commit() -> None:
    """KIP-211: a live group keeps the offsets of idle partitions."""
    state = state_after(commit(1, expires_ms=100), commit(2, partition=1, expires_ms=200))
    assert state.expired(199, ["t"]) == []
    after = state.apply(2, state.expired(200, ["t"]))
    assert after.groups == {}
    assert after.expired(200, ["t"]) == []


@given(st.integers(0, 2), st.none() | st.integers(5, 6))
def test_a_commit_that_overtakes_its_groups_expiry_keeps_all_of_the_group(
    partition: int, epoch: int | None
) -> None:
    """Between the look at the expired groups and the append, the group may have committed again, for any
    partition; then it is live.
    """
    state = state_after(commit(3, member_epoch=5), commit(4, partition=1, member_epoch=5))
    forget = state.expired(100, ["t"])
    overtaken = state.apply(2, [commit(9, partition=partition, expires_ms=200, member_epoch=epoch)])
    after = overtaken.apply(3, forget)
    assert after.groups == overtaken.groups
    assert offsets(after) == {("t", 0): 3, ("t", 1): 4} | {("t", partition): 9}


def test_a_stale_commit_does_not_keep_a_group_alive() -> None:
    """A record that does not count elsewhere does not count here, either."""
    state = state_after(commit(3, member_epoch=5))
    forget = state.expired(100, ["t"])
    assert state.apply(1, [commit(9, expires_ms=200, member_epoch=4), *forget]).groups == {}


def test_a_commit_after_the_expiry_starts_the_group_over() -> None:
    state = state_after(commit(3, member_epoch=5), commit(4, partition=1, member_epoch=5))
    again = commit(9, expires_ms=200, member_epoch=1)
    after = state.apply(2, [*state.expired(100, ["t"]), again])
    assert offsets(after) == {("t", 0): 9}
    assert (after.groups["g"].member_epoch, after.groups["g"].expires_ms) == (1, 200)


def test_an_expiry_of_long_ago_does_not_meet_the_group_that_came_after() -> None:
    """A driver that slept between its look and its append, for any time."""
    state = state_after(commit(3))
    forget = state.expired(100, ["t"])
    assert offsets(state.apply(1, [*forget, commit(5), *forget])) == {("t", 0): 5}


def test_offsets_of_deleted_topics_are_forgotten() -> None:
    """A topic id is never used again; the rest of the group stays."""
    state = state_after(commit(1, expires_ms=200), commit(3, topic_id="gone", expires_ms=200))
    after = state.apply(2, state.expired(150, ["t"]))
    assert offsets(after) == {("t", 0): 1}
    assert after.expired(150, ["t"]) == []


def test_a_group_of_which_nothing_is_known_is_no_group() -> None:
    """All its offsets were for deleted topics, and its committer was no member."""
    state = state_after(commit(3, topic_id="gone", expires_ms=200))
    assert state.apply(1, state.expired(150, ["t"])) == ConsumerOffsets({}, 2)


def test_a_member_epoch_is_forgotten_with_the_group_and_not_before() -> None:
    """Otherwise a stale member could commit for a group whose topics were deleted meanwhile."""
    state = state_after(commit(1, topic_id="gone", expires_ms=300, member_epoch=5))
    empty = state.apply(1, state.expired(200, ["t"]))
    assert (empty.groups["g"].member_epoch, empty.groups["g"].offsets) == (5, {})
    assert empty.apply(empty.next_offset, empty.expired(300, ["t"])).groups == {}


def test_a_forgotten_group_is_one_change_per_key() -> None:
    """KIP-630, "When to Snapshot": deletions of records in the snapshot count."""
    state = state_after(commit(1), commit(2, partition=1))
    held = {key for key, _ in map(consumer_offsets.encode, state.dump())}
    touched = [key for key, _ in map(consumer_offsets.encode, state.expired(100, ["t"]))]
    assert changed_records(held, touched) == len(held) == 3


def test_a_large_commit_is_linear() -> None:
    """A group's offsets are copied once per batch, not once per record."""
    state = state_after(*(commit(n, partition=n) for n in range(5000)))
    assert len(state.groups["g"].offsets) == 5000


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"[]", None), (None, None), (b'["g"]', None), (b'["g","t",0]', b"{}"), (b'["g","t",0]', b'{"type":"New"}')],
)
def test_an_invalid_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptionError, match="not a record of committed offsets"):
        consumer_offsets.decode(key, value)


@pytest.mark.parametrize("record", [OffsetTombstone(group="g", topic_id="t", partition=0), commit(1)], ids=str)
def test_a_snapshot_holds_nothing_but_state(record: OffsetsRecord) -> None:
    """An offset's group always precedes it."""
    with pytest.raises(CorruptionError, match="which is not a state"):
        OFFSETS.load([record], 1)


def test_the_log_holds_nothing_but_changes() -> None:
    with pytest.raises(CorruptionError, match="only in snapshots"):
        state_after(GroupMetadata(group="g", latest_commit=0, expires_ms=1))


@pytest.mark.parametrize(
    ("text", "hashed", "partition"),
    [
        ("", 0, 0),
        ("hello", 99162322, 22),
        ("Hello World", -862545276, 26),
        ("console-consumer-4711", 836489572, 22),
        ("my-group", -1906497762, 12),
        ("loader", -1097519085, 35),
        ("connect-sink-orders", -646484228, 28),
        ("ünïcødé", -609219977, 27),
        ("\N{GRINNING FACE}x", 54959989, 39),
        ("polygenelubricants", -2147483648, 0),
    ],
)
def test_keys_choose_their_partition_as_in_kafka(text: str, hashed: int, partition: int) -> None:
    """``Utils.abs(groupId.hashCode) % 50``, as in Java: the absolute value, not the hash without its sign bit."""
    assert java_hash(text) == hashed
    assert partition_for(text, 50) == partition


# ------------------------------------------------------------------------- offsets in transactions


def test_pending_offsets_count_when_their_transaction_is_committed() -> None:
    """KIP-98, "TxnOffsetCommitRequest"."""
    before = state_after(commit(3), pending(7), pending(8, partition=1), pending(9, group="h"))
    assert offsets(before) == {("t", 0): 3}
    assert before.unstable("g") == {("t", 0): "p", ("t", 1): "p"}
    after = before.apply(4, [end(1)])
    assert (offsets(after), offsets(after, "h")) == ({("t", 0): 7, ("t", 1): 8}, {("t", 0): 9})
    assert (after.unstable("g"), after.groups["g"].latest_commit) == ({}, 4)


def test_pending_offsets_of_an_aborted_transaction_are_dropped() -> None:
    after = state_after(commit(3), pending(7), end(1, committed=False))
    assert (offsets(after), after.unstable("g")) == ({("t", 0): 3}, {})


@pytest.mark.parametrize("overtaking", [[commit(5)], [pending(5, producer="q"), end(1, producer="q")]])
def test_a_pending_offset_replaces_earlier_commits_only(overtaking: list[OffsetsRecord]) -> None:
    """If there are two commits, the later one in the log counts, whenever their transactions end; a snapshot in
    between does not change this.
    """
    log = [pending(7), *overtaking, end(1)]
    for cut in range(len(log) + 1):
        half = state_after(*log[:cut])
        loaded = ConsumerOffsets.load(half.dump(), half.next_offset)
        assert offsets(loaded.apply(cut, log[cut:])) == {("t", 0): 5}
    assert offsets(state_after(commit(5), pending(7), end(1))) == {("t", 0): 7}


OTHERS = [pending(5, group="h"), pending(6, group="h", producer="q")]


@pytest.mark.parametrize(
    ("record", "dropped"),
    [
        (ForgetGroup(group="g", seen=3, pending=True), {0, 1}),
        (ForgetGroup(group="g", seen=3), set()),
        (ForgetGroup(group="g", seen=2, pending=True), set()),
        (ForgetOffset(group="g", topic_id="t", partition=1, seen=3, pending=True), {1}),
        (ForgetOffset(group="g", topic_id="t", partition=1, seen=3), set()),
        (ForgetOffset(group="g", topic_id="t", partition=1, seen=2, pending=True), set()),
        (ForgetOffset(group="g", topic_id="u", partition=1, seen=3, pending=True), set()),
        (OffsetTombstone(group="g", topic_id="t", partition=0), {0}),
    ],
)
def test_deleted_offsets_do_not_return_with_a_transaction(record: OffsetsRecord, dropped: set[int]) -> None:
    """The group ``g`` has two pending offsets, and those for the partitions ``dropped`` are gone. An expiry leaves
    both, and so does a deletion that a later commit invalidates.
    """
    log = [pending(7), pending(8, producer="q", partition=1), commit(1, partition=2), commit(2, partition=2)]
    before = ConsumerOffsets().apply(0, [*log, *OTHERS])
    assert before.groups["g"].latest_commit == 3
    after = before.apply(6, [record])
    assert {partition for _, partition in after.unstable("g")} == {0, 1} - dropped
    of_h = [key for producer in after.producers.values() for key in producer.pending if key[0] == "h"]
    assert len(of_h) == len(OTHERS)
    over = after.apply(7, [end(1), end(1, producer="q")])
    kept = {partition for _, partition in over.groups["g"].offsets} if "g" in over.groups else set()
    assert kept - {2} == {0, 1} - dropped


def test_late_records_of_a_transaction_change_nothing() -> None:
    """KIP-890: a transaction's offset after its end, a repeated end, and an end after the next transaction has
    begun.
    """
    after = state_after(pending(7), end(1), commit(3), pending(9), end(1), end(1, committed=False))
    assert (offsets(after), after.unstable("g")) == ({("t", 0): 3}, {})
    begun = after.apply(6, [pending(8, epoch=1), end(1)])
    assert (offsets(begun), begun.unstable("g")) == ({("t", 0): 3}, {("t", 0): "p"})
    assert offsets(begun.apply(8, [end(2)])) == {("t", 0): 8}


def test_an_end_commits_only_the_transaction_before_it() -> None:
    """A transaction without its own end can no longer be completed."""
    assert state_after(pending(7), end(2)).groups == {}
    assert offsets(state_after(pending(7), pending(8, epoch=1, partition=1), end(2))) == {("t", 1): 8}


def test_an_end_excludes_what_never_arrived() -> None:
    assert state_after(end(1), pending(7)).unstable("g") == {}


def test_producers_are_forgotten_when_nothing_of_them_is_to_be_expected() -> None:
    """transactional.id.expiration.ms; an id with pending offsets never expires."""
    state = state_after(end(1, expires_ms=200), pending(7, producer="q"))
    assert state.expired(199, ["t"]) == []
    gone = state.expired(200, ["t"])
    assert gone == [ForgetProducer(producer_id="p", producer_epoch=1)]
    assert state.apply(2, gone).producers.keys() == {"q"}
    assert state.apply(2, [end(2), *gone]).producers.keys() == {"p", "q"}  # the producer has advanced meanwhile


def test_producers_only_in_snapshots_are_refused_in_the_log_of_producers_too() -> None:
    with pytest.raises(CorruptionError, match="only in snapshots"):
        state_after(ProducerMetadata(producer_id="p", producer_epoch=1, expires_ms=0))
