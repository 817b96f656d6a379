"""Where a follower begins: the sentences of KIP-405 and KIP-1023 as tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitions.errors import CorruptSegmentError, RemoteObjectMissingError
from partitions.lineage import Lineage
from tests.unit.tiering_harness import TieredPartition
from tiering.bootstrap import (
    FetchOrigin,
    FromLeader,
    FromRemote,
    LeaderOffsets,
    RemoteNotReady,
    StartOver,
    auxiliary_state,
    fetch_origin,
)


def origin(
    *,
    fetch: int = 0,
    empty: bool = True,
    enabled: bool = True,
    log_start: int = 0,
    local_start: int = 3,
    log_end: int = 8,
    pending: int | None = 6,
    tiered: bool = True,
) -> FetchOrigin:
    """KIP-1023's worked scenario but for what a test changes: offsets 0-7, local from 3, 0-5 in the remote."""
    leader = LeaderOffsets(log_start, local_start, log_end, pending, tiered)
    return fetch_origin(leader, fetch_offset=fetch, follower_is_empty=empty, from_last_tiered=enabled)


def test_the_worked_scenario_starts_at_the_earliest_pending_upload() -> None:
    """KIP-1023, "Follower Fetch Scenarios", steps 1 and 2: fetch 0, OMTS, EPUO 6, "Fetch from EPUO to HW"."""
    assert origin() == FromRemote(6, 0)


def test_the_worked_scenario_without_the_feature_starts_at_the_local_start() -> None:
    """KIP-405, "Follower fetch", as in KIP-1023's case 2.2: "Fetch-Offset -> Leader's Local-Log-Start-Offset"."""
    assert origin(enabled=False) == FromRemote(3, 0)


def test_offsets_on_the_leader_are_fetched_from_it() -> None:
    """KIP-1023, "High-Level Design", case 1: "The requested offset is present on the leader"."""
    assert origin(fetch=3) == FromLeader(3)
    assert origin(fetch=8) == FromLeader(8)
    assert origin(fetch=4, empty=False, enabled=False) == FromLeader(4)


def test_uploaded_but_still_local_offsets_are_fetched_from_the_leader() -> None:
    """KIP-1023, case 1: "also true when the leader has uploaded the segments, but hasn't cleared the segments
    from the local disk yet ... (offset 0) may still be available on the leader".
    """
    assert origin(local_start=0) == FromLeader(0)


def test_below_the_log_start_of_an_untiered_topic_the_follower_starts_over() -> None:
    """KIP-1023, case 2.1: OFFSET_OUT_OF_RANGE, "Fetch-Offset -> leader's Log-Start-Offset"."""
    assert origin(fetch=1, empty=False, log_start=3, pending=None, tiered=False) == StartOver(3)


def test_below_the_log_start_where_all_of_the_log_is_local_it_starts_over() -> None:
    """KIP-1023, case 2.1, of a tiered topic: log start and local start are one."""
    assert origin(fetch=1, empty=False, log_start=3) == StartOver(3)


def test_below_the_log_start_where_its_first_part_is_tiered_the_local_start_counts() -> None:
    """KIP-1023, case 2.1 and then 2.2: the log start is fetched next, and has moved to the remote as well."""
    assert origin(fetch=1, empty=False, log_start=2) == FromRemote(3, 2)


def test_moved_to_tiered_storage_starts_at_the_local_start() -> None:
    """KIP-1023, case 2.2: "the offset has moved to tiered storage": aux state for [log start, local start]."""
    assert origin(fetch=2, empty=False) == FromRemote(3, 0)


def test_the_new_protocol_is_for_empty_followers_only() -> None:
    """KIP-1023, "High-Level Design": "These changes apply only when the follower is empty"."""
    assert origin(fetch=2, empty=False, enabled=True) == FromRemote(3, 0)


def test_out_of_range_and_moved_lead_an_empty_follower_to_the_same_place() -> None:
    """KIP-1023: "Leader responds with either OFFSET_OUT_OF_RANGE or OFFSET_MOVED_TO_TIERED_STORAGE error"."""
    assert origin(fetch=0, log_start=1) == FromRemote(6, 1)
    assert origin(fetch=1, log_start=1) == FromRemote(6, 1)
    assert origin(fetch=0, log_start=3) == FromRemote(6, 3)


def test_unknown_and_nothing_uploaded_starts_at_the_local_start() -> None:
    """KIP-1023, "ReplicaFetcher Changes": unknown, "Log-Start-Offset is the same as ... Local-Log-Start-Offset":
    "we use the Local-Log-Start-Offset as the Earliest-Pending-Upload-Offset".
    """
    assert origin(pending=None, log_start=3) == StartOver(3)


def test_unknown_although_something_was_uploaded_is_retried() -> None:
    """KIP-1023, "ReplicaFetcher Changes": "should throw an exception so that the partition can be retried"."""
    assert isinstance(origin(pending=None), RemoteNotReady)
    assert isinstance(origin(pending=None, enabled=False), RemoteNotReady)


def test_a_remote_below_the_log_start_holds_nothing_of_the_log() -> None:
    """KIP-1023: "Earliest-Pending-Upload-Offset < Log-Start-Offset ... truncates its log and starts replicating
    all data the leader has locally".
    """
    assert origin(pending=1, log_start=3) == StartOver(3)
    assert origin(pending=1, log_start=2) == StartOver(3)


def test_a_remote_that_ends_at_the_log_start_is_no_reason_to_copy_more() -> None:
    """KIP-1023, "Otherwise": the range [log start, pending upload] may be empty."""
    assert origin(pending=3, log_start=3) == FromRemote(3, 3)


def test_everything_tiered_and_an_empty_active_segment() -> None:
    """KIP-1023, "ReplicaFetcher Changes", "Otherwise": pending upload = log end; nothing is left to copy."""
    assert origin(pending=8) == FromRemote(8, 0)


def test_an_end_of_the_remote_outside_the_leaders_log_is_retried() -> None:
    """Beyond the KIP: the follower could fetch nothing there (a remote read before the leader was listed)."""
    assert isinstance(origin(pending=2), RemoteNotReady)
    assert isinstance(origin(pending=9), RemoteNotReady)


def test_tiering_off_never_looks_at_the_remote() -> None:
    """KIP-405, "Follower fetch" is of topics "enabled with tiered storage"."""
    assert origin(tiered=False) == StartOver(3)
    assert origin(tiered=False, pending=None, log_start=0) == StartOver(3)


def test_a_follower_ahead_of_its_leader_starts_over() -> None:
    """Protocol, section 3: "outside L's log otherwise: OFFSET_OUT_OF_RANGE, start over at L's local start"."""
    assert origin(fetch=9, empty=False) == StartOver(3)


def test_a_follower_that_crashed_after_its_register_goes_on() -> None:
    """Protocol, section 3, step 3: the register is there before the first copy; a second attempt continues."""
    assert origin(fetch=6) == FromLeader(6)


@given(
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
    st.none() | st.integers(0, 12),
    st.booleans(),
)
def test_every_start_is_in_the_leaders_log(
    fetch: int, empty: bool, enabled: bool, log_start: int, local: list[int], pending: int | None, tiered: bool
) -> None:
    match origin(
        fetch=fetch,
        empty=empty,
        enabled=enabled,
        log_start=log_start,
        local_start=local[0],
        log_end=local[1],
        pending=pending,
        tiered=tiered,
    ):
        case FromLeader(offset) | StartOver(offset) | FromRemote(offset):
            assert local[0] <= offset <= local[1]
        case RemoteNotReady(reason):
            assert reason


def worked_scenario(folder: Path) -> TieredPartition:
    """KIP-1023's broker A: epochs 0-3 from offsets 0, 3, 5, 7 (ours are greater by one); the remote holds
    0-2 and 3-5.
    """
    part = TieredPartition(folder)
    part.append(3)
    part.tier()
    part.one.elect(1)
    part.append(2)
    part.one.elect(1)
    part.append(1)
    return part


def test_the_epochs_of_the_worked_scenario_are_rebuilt_from_the_remote(tmp_path: Path) -> None:
    """KIP-1023, "Follower Fetch Scenarios", step 1: leader_epochs LE-0,0 LE-1,3 LE-2,5 on broker B."""
    part = worked_scenario(tmp_path)
    part.tier()
    part.append(1)
    part.one.elect(1)
    part.append(1)
    log = part.table.load()
    assert (log.end(0), part.log.log_end) == (6, 8)
    state = auxiliary_state(part.remote, part.table.folder, log.of_partition(0)[-1])
    assert state.offset == 6
    assert state.lineage == Lineage([(1, 0), (2, 3), (3, 5)])
    assert part.log.lineage == Lineage([(1, 0), (2, 3), (3, 5), (4, 7)])


def test_the_producer_state_at_the_remote_end_is_rebuilt(tmp_path: Path) -> None:
    """KIP-1023, "Motivation": "auxiliary state (i.e. leader epoch sequence, producer snapshot state)"."""
    part = TieredPartition(tmp_path)
    part.one.append(["a", "b"], producer="p", sequence=7)
    part.tier()
    part.one.append(["c"], producer="p", sequence=8)
    state = auxiliary_state(part.remote, part.table.folder, part.table.load().of_partition(0)[-1])
    assert (state.producers["p"].sequence, state.producers["p"].next_offset) == (7, 2)


def test_a_last_segment_that_is_gone_or_truncated_is_named(tmp_path: Path) -> None:
    part = TieredPartition(tmp_path)
    part.append(2)
    last = part.tier().log.of_partition(0)[-1]
    path = tmp_path / "remote" / part.table.path(last)
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(RemoteObjectMissingError, match=path.name):
        auxiliary_state(part.remote, part.table.folder, last)
    path.write_bytes(whole[:-1])
    with pytest.raises((RemoteObjectMissingError, CorruptSegmentError), match=path.name):
        auxiliary_state(part.remote, part.table.folder, last)
