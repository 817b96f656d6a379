"""``__consumer_offsets`` as a fold: the laws of state machines, stale members, expiry (KIP-630, KIP-848)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state import consumer_offsets
from engine.state.consumer_offsets import (
    ConsumerOffsets,
    GroupExpiry,
    OffsetCommit,
    OffsetExpiry,
    OffsetsRecord,
    OffsetTombstone,
)
from engine.state.internal_topics import java_hash, partition_for
from engine.state.keyed import OFFSETS
from partitions.errors import CorruptionError
from snapshots.state_machine import Codec
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


GROUPS, TOPICS = st.sampled_from(["g", "h", "ü"]), st.sampled_from(["t", "u"])
PARTITIONS, TIMES = st.integers(0, 2), st.integers(100, 130)
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
    st.builds(OffsetExpiry, group=GROUPS, topic_id=TOPICS, partition=PARTITIONS, until_ms=TIMES),
    st.builds(OffsetTombstone, group=GROUPS, topic_id=TOPICS, partition=PARTITIONS),
    st.builds(GroupExpiry, group=GROUPS, until_ms=TIMES),
)


@given(st.lists(RECORDS, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_snapshot_may_stand_anywhere(log: list[OffsetsRecord], cuts: list[int]) -> None:
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


def test_a_stale_member_counts_for_nothing_wherever_it_stands() -> None:
    """KIP-848, STALE_MEMBER_EPOCH: the log decides who was faster, for all partitions of the group."""
    stale = [commit(9, partition=partition, member_epoch=1) for partition in (0, 1)]
    state = state_after(commit(3, member_epoch=2), *stale)
    assert offsets(state) == {("t", 0): 3}
    assert offsets(state.apply(3, [commit(4, member_epoch=2)])) == {("t", 0): 4}
    assert state.apply(3, [commit(5, member_epoch=3)]).groups["g"].member_epoch == 3


def test_who_is_no_member_is_never_stale() -> None:
    """A tool that resets offsets, say."""
    assert offsets(state_after(commit(3, member_epoch=2), commit(0))) == {("t", 0): 0}


def test_expiry_does_not_take_a_commit_that_overtook_it() -> None:
    """Between the look at what has expired and the append, the group may have committed again."""
    expiry = OffsetExpiry(group="g", topic_id="t", partition=0, until_ms=100)
    assert state_after(commit(3, expires_ms=100), expiry) == ConsumerOffsets({}, 2)
    assert offsets(state_after(commit(3, expires_ms=100), commit(4, expires_ms=150), expiry)) == {("t", 0): 4}


def test_what_has_expired_and_what_is_of_deleted_topics_is_forgotten() -> None:
    """offsets.retention.minutes; a topic id never comes back."""
    state = state_after(
        commit(1, expires_ms=100),
        commit(2, partition=1, expires_ms=200),
        commit(3, topic_id="gone", expires_ms=200),
    )
    after = state.apply(3, state.expired(150, ["t"]))
    assert offsets(after) == {("t", 1): 2}
    assert after.expired(150, ["t"]) == []


def test_a_member_epoch_is_forgotten_with_the_last_offset_and_not_before() -> None:
    """Else a member that was thought dead could commit for a group that is merely quiet."""
    state = state_after(commit(1, expires_ms=100, member_epoch=5), commit(2, partition=1, expires_ms=300))
    half = state.apply(2, state.expired(200, ["t"]))
    assert half.groups["g"].member_epoch == 5
    empty = half.apply(half.next_offset, half.expired(300, ["t"]))
    assert empty.groups == {}


def test_a_large_commit_is_linear() -> None:
    """A group's offsets are copied once a batch, not once a record."""
    state = state_after(*(commit(n, partition=n) for n in range(5000)))
    assert len(state.groups["g"].offsets) == 5000


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"[]", None), (None, None), (b'["g"]', None), (b'["g","t",0]', b"{}"), (b'["g","t",0]', b'{"type":"New"}')],
)
def test_what_is_no_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptionError, match="no record of committed offsets"):
        consumer_offsets.decode(key, value)


def test_a_snapshot_holds_nothing_but_state() -> None:
    with pytest.raises(CorruptionError, match="which is no state"):
        OFFSETS.load([OffsetTombstone(group="g", topic_id="t", partition=0)], 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -2147483648), ("😀x", 54959989)],
)
def test_keys_choose_their_partition_as_in_kafka(text: str, value: int) -> None:
    """Java's ``String.hashCode``, without its sign, modulo the number of partitions."""
    assert java_hash(text) == value
    assert partition_for(text, 50) == (value & 0x7FFFFFFF) % 50
