"""The start of a follower: the sentences of KIP-405 and KIP-1023 as tests."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from stratalog.partitions.errors import CorruptionError, CorruptSegmentError, RemoteObjectMissingError
from stratalog.partitions.lineage import Lineage
from stratalog.tiering.bootstrap import (
    FetchError,
    FetchOrigin,
    FromLeader,
    FromRemote,
    LastTiered,
    LeaderOffsets,
    RemoteNotReady,
    StartOver,
    auxiliary_state,
    fetch_error,
    fetch_origin,
)
from tests.unit.tiering_harness import TieredPartition


def origin(
    *,
    fetch: int = 0,
    empty: bool = True,
    enabled: bool = True,
    always: bool = False,
    log_start: int = 0,
    local_start: int = 3,
    log_end: int = 8,
    pending: int | None = 6,
    tiered: bool = True,
) -> FetchOrigin:
    """KIP-1023's worked scenario with a test's changes: offsets 0-7, local from 3, 0-5 in the remote tier."""
    leader = LeaderOffsets(log_start, local_start, log_end, pending, tiered)
    return fetch_origin(
        leader, fetch_offset=fetch, follower_is_empty=empty, last_tiered=LastTiered.of(enabled, always)
    )


CASES = {
    # KIP-1023, "Follower Fetch Scenarios", steps 1 and 2: fetch 0, OMTS, EPUO 6, "Fetch from EPUO to HW"
    "the worked scenario": ({}, FromRemote(6, 0)),
    # KIP-405, "Follower fetch", as in KIP-1023's case 2.2: "Fetch-Offset -> Leader's Local-Log-Start-Offset"
    "the worked scenario without the feature": ({"enabled": False}, FromRemote(3, 0)),
    # KIP-1023, "High-Level Design", case 1: "The requested offset is present on the leader"
    "at the local start": ({"fetch": 3}, FromLeader(3)),
    "at the log end": ({"fetch": 8}, FromLeader(8)),
    "in the local log": ({"fetch": 4, "empty": False, "enabled": False}, FromLeader(4)),
    # KIP-1023, case 1: "also true when the leader has uploaded the segments, but hasn't cleared the segments from
    # the local disk yet ... (offset 0) may still be available on the leader"
    "uploaded but still local": ({"local_start": 0}, FromLeader(0)),
    # Protocol, section 3, step 3: the register exists before the first copy; a second attempt continues
    "a follower that crashed after its register": ({"fetch": 6}, FromLeader(6)),
    # KIP-1023, case 2.1: OFFSET_OUT_OF_RANGE, "Fetch-Offset -> leader's Log-Start-Offset"
    "below the log start of an untiered topic": (
        {"fetch": 1, "empty": False, "log_start": 3, "pending": None, "tiered": False},
        StartOver(3),
    ),
    "below the log start where all of the log is local": (
        {"fetch": 1, "empty": False, "log_start": 3},
        StartOver(3),
    ),
    # KIP-1023, case 2.1 and then 2.2: the log start is fetched next, and has moved to the remote as well
    "below the log start where its first part is tiered": (
        {"fetch": 1, "empty": False, "log_start": 2},
        FromRemote(3, 2),
    ),
    # KIP-1023, case 2.2: "the offset has moved to tiered storage": aux state for [log start, local start].
    # "High-Level Design": "These changes apply only when the follower is empty"
    "moved to tiered storage": ({"fetch": 2, "empty": False}, FromRemote(3, 0)),
    # KIP-1023: "Leader responds with either OFFSET_OUT_OF_RANGE or OFFSET_MOVED_TO_TIERED_STORAGE error"; both
    # lead an empty follower to the same place
    "empty and out of range": ({"fetch": 0, "log_start": 1}, FromRemote(6, 1)),
    "empty and moved to tiered storage": ({"fetch": 1, "log_start": 1}, FromRemote(6, 1)),
    "empty and out of range of a local log": ({"fetch": 0, "log_start": 3}, FromRemote(6, 3)),
    # KIP-1023, "ReplicaFetcher Changes": unknown, "Log-Start-Offset is the same as ... Local-Log-Start-Offset":
    # "we use the Local-Log-Start-Offset as the Earliest-Pending-Upload-Offset"
    "nothing uploaded": ({"pending": None, "log_start": 3}, StartOver(3)),
    # KIP-1023: "Earliest-Pending-Upload-Offset < Log-Start-Offset ... truncates its log and starts replicating all
    # data the leader has locally"
    "a remote below the log start": ({"pending": 1, "log_start": 3}, StartOver(3)),
    "a remote just below the log start": ({"pending": 1, "log_start": 2}, StartOver(3)),
    # KIP-1023, "ReplicaFetcher Changes", "Otherwise": [log start, pending upload] may be empty
    "a remote that ends at the log start": ({"pending": 3, "log_start": 3}, FromRemote(3, 3)),
    # "Otherwise", pending upload = log end: nothing is left to copy
    "everything is tiered": ({"pending": 8}, FromRemote(8, 0)),
    # "Otherwise": both rules lead to one place
    "a remote that ends at the local start": ({"pending": 3}, FromRemote(3, 0)),
    "the same without the feature": ({"pending": 3, "enabled": False}, FromRemote(3, 0)),
    # KIP-405, "Follower fetch" is about topics "enabled with tiered storage"
    "a topic without tiering": ({"tiered": False}, StartOver(3)),
    "a topic without tiering or a remote": ({"tiered": False, "pending": None}, StartOver(3)),
    # Protocol, section 3: "outside L's log otherwise: OFFSET_OUT_OF_RANGE, start over at L's local start"
    "a follower ahead of its leader": ({"fetch": 9, "empty": False}, StartOver(3)),
    # By follower.fetch.last.tiered.offset.always.enable, beyond KIP-1023's case 1: for empty followers of tiered
    # topics where the feature is on
    "always where the feature is off": ({"always": True, "local_start": 0, "enabled": False}, FromLeader(0)),
    "always for a follower with records": ({"always": True, "local_start": 0, "empty": False}, FromLeader(0)),
    "always for an untiered topic": ({"always": True, "local_start": 0, "tiered": False}, FromLeader(0)),
    # The leader holds the requested offset: an end of the remote log that is unknown, or not in its log, is no
    # reason to wait, and one at the follower's own end skips nothing
    "always with an unknown end": ({"always": True, "local_start": 0, "pending": None}, FromLeader(0)),
    "always with an end beyond the log": ({"always": True, "local_start": 0, "pending": 9}, FromLeader(0)),
    "always with nothing to skip": ({"always": True, "local_start": 0, "pending": 0}, FromLeader(0)),
    "always with an end below the log start": (
        {"always": True, "local_start": 0, "log_start": 3, "pending": 2},
        FromLeader(0),
    ),
}


@pytest.mark.parametrize(("given", "wanted"), CASES.values(), ids=CASES)
def test_a_follower_begins_where_the_kips_say(given: dict[str, Any], wanted: FetchOrigin) -> None:
    assert origin(**given) == wanted


@pytest.mark.parametrize(
    "given",
    [
        # KIP-1023, "ReplicaFetcher Changes": "should throw an exception so that the partition can be retried"
        pytest.param({"pending": None}, id="unknown although something was uploaded"),
        pytest.param({"pending": None, "enabled": False}, id="the same without the feature"),
        # Beyond the KIP: the follower could fetch nothing there (a remote read before the leader was listed)
        pytest.param({"pending": 2}, id="an end below the leader's log"),
        pytest.param({"pending": 9}, id="an end beyond the leader's log"),
    ],
)
def test_a_remote_that_is_not_ready_is_retried(given: dict[str, Any]) -> None:
    assert isinstance(origin(**given), RemoteNotReady)


@pytest.mark.parametrize(
    ("fetch", "tiered", "answer"),
    [
        (0, True, FetchError.OFFSET_OUT_OF_RANGE),
        (1, True, FetchError.OFFSET_MOVED_TO_TIERED_STORAGE),
        (2, True, FetchError.OFFSET_MOVED_TO_TIERED_STORAGE),
        (2, False, FetchError.OFFSET_OUT_OF_RANGE),
        (3, True, None),
        (8, True, None),
        (9, True, FetchError.OFFSET_OUT_OF_RANGE),
    ],
)
def test_the_leader_answers_a_fetch_outside_its_local_log_with_kafkas_errors(
    fetch: int, tiered: bool, answer: FetchError | None
) -> None:
    """KIP-1023, "High-Level Design": case 1, case 2.1 "lower than the earliest offset the leader knows", case 2.2
    "greater than or equal to the earliest offset the leader knows, but ... moved to tiered storage"."""
    assert fetch_error(LeaderOffsets(1, 3, 8, 6, tiered), fetch) == answer


@pytest.mark.parametrize("pending", [1, 3, 6, 8])
def test_always_skips_what_is_tiered_although_the_leader_still_holds_it(pending: int) -> None:
    """Beyond KIP-1023's case 1, by ``follower.fetch.last.tiered.offset.always.enable``."""
    assert origin(local_start=0, pending=pending) == FromLeader(0)
    assert origin(local_start=0, pending=pending, always=True) == FromRemote(pending, 0)


def kip(leader: LeaderOffsets, fetch: int, empty: bool, last_tiered: LastTiered) -> FetchOrigin | None:
    """The KIP sentence by sentence, over sets of offsets; None if the partition is "retried after some time".
    Where the KIP lets a follower begin at a log start that the leader has locally, it begins here at the local
    start, which may be below (protocol section 3): replicas are equal file by file."""
    on_the_leader = set(range(leader.local_start, leader.log_end + 1))
    all_the_leader_has_locally = StartOver(leader.local_start)
    pending = leader.earliest_pending_upload
    feature = empty and last_tiered is not LastTiered.NEVER
    # "Case 1: The requested offset is present on the leader"
    if fetch in on_the_leader:
        valid = set(range(max(leader.log_start, fetch + 1), leader.log_end + 1)) & on_the_leader
        if empty and last_tiered is LastTiered.ALWAYS and leader.tiered and pending in valid:
            return FromRemote(pending, leader.log_start)
        return FromLeader(fetch)
    # Case 2. "For such topics" are those "enabled with tiered storage"; past the end: protocol section 3.
    if not leader.tiered or fetch > leader.log_end:
        return all_the_leader_has_locally
    # "If the Earliest-Pending-Upload-Offset is unknown"
    if pending is None:
        # "confirmed by checking if the leader's Log-Start-Offset is the same as the Leader's Local-Log-Start"
        return None if leader.log_start < leader.local_start else all_the_leader_has_locally
    # "Earliest-Pending-Upload-Offset < Log-Start-Offset": "there are no valid log segments on the remote yet"
    if pending < leader.log_start:
        return all_the_leader_has_locally
    if feature:  # "Otherwise, ReplicaFetcher builds the remote log auxiliary states"
        return FromRemote(pending, leader.log_start) if pending in on_the_leader else None
    # "If the check fails, continue with the old behaviour": 2.1 leads to the log start, 2.2 to the local start
    if leader.log_start >= leader.local_start:
        return all_the_leader_has_locally
    return FromRemote(leader.local_start, leader.log_start) if pending in on_the_leader else None


@pytest.mark.parametrize("last_tiered", LastTiered)
def test_every_case_is_as_the_kip_says(last_tiered: LastTiered) -> None:
    """KIP-1023, "High-Level Design" and "ReplicaFetcher Changes", over the whole cross product of small offsets.
    In every case the follower begins where the leader can serve it."""
    offsets = range(5)
    leaders = [
        LeaderOffsets(log_start, local_start, log_end, pending, tiered)
        for log_start, local_start, log_end in itertools.product(offsets, offsets, offsets)
        for pending in (None, *range(7))
        for tiered in (False, True)
        if local_start <= log_end
    ]
    for leader, fetch, empty in itertools.product(leaders, range(7), (False, True)):
        found = fetch_origin(leader, fetch_offset=fetch, follower_is_empty=empty, last_tiered=last_tiered)
        expected = kip(leader, fetch, empty, last_tiered)
        if isinstance(found, RemoteNotReady):
            assert expected is None, (leader, fetch, empty)
            assert found.reason
        else:
            assert found == expected, (leader, fetch, empty)
            assert leader.local_start <= found.offset <= leader.log_end


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


def test_a_remote_log_of_another_history_is_no_place_to_start_from(tmp_path: Path) -> None:
    """KIP-405: a follower may leave to the remote tier the records that its leader wrote. After an unclean
    election the leader's offsets below the end of the remote log may be others."""
    part = worked_scenario(tmp_path)
    part.tier()
    last = part.table.load().of_partition(0)[-1]
    state = auxiliary_state(part.remote, part.table.folder, last)
    state.check_history(part.log.lineage, "t-0")
    state.check_history(Lineage([*part.log.lineage, (4, 6), (5, 9)]), "t-0")  # later records are no contradiction
    with pytest.raises(CorruptionError, match="the histories differ"):
        state.check_history(Lineage([(1, 0), (2, 3), (4, 5)]), "t-0")
    with pytest.raises(CorruptionError, match="the histories differ"):
        state.check_history(Lineage([(1, 0), (2, 3)]), "t-0")
