"""The leader's side of FetchSnapshot (KIP-630): its errors, and how it shares a response."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitions.errors import (
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    InvalidCallError,
    NotLeaderOrFollowerError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    StratalogError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from partitions.store.memory import MemoryStore
from snapshots.fetch import (
    Fetched,
    SnapshotFetch,
    fetch_snapshots,
)
from snapshots.messages import (
    Chunk,
    FetchSnapshotRequest,
    PartitionAnswer,
    PartitionRequest,
    Refused,
    share,
)
from snapshots.snapshot_id import SnapshotId
from tests.unit.fetch_harness import (
    CLUSTER,
    EPOCH,
    FOLLOWER,
    VALUES,
    WANTED,
    Leader,
    leader_with,
    of,
)
from tests.unit.snapshot_files import FOLDER, ID, LATER, OWNER, PARTITION, write

# ------------------------------------------------------------------------------- errors of the leader


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param({"snapshot_id": LATER}, SnapshotNotFoundError, id="no such snapshot"),
        pytest.param({"position": 10**6}, PositionOutOfRangeError, id="behind the end"),
        pytest.param({"position": -1}, PositionOutOfRangeError, id="before the beginning"),
        pytest.param({"current_leader_epoch": EPOCH - 1}, FencedLeaderEpochError, id="an older leader epoch"),
        pytest.param({"current_leader_epoch": EPOCH + 1}, UnknownLeaderEpochError, id="a newer leader epoch"),
        pytest.param({"partition": 99}, UnknownTopicOrPartitionError, id="no such partition"),
        pytest.param({"topic_id": "0" * 32}, UnknownTopicOrPartitionError, id="no such topic"),
    ],
)
def test_what_the_leader_refuses(changes: dict[str, Any], error: type[StratalogError]) -> None:
    """KIP-630, "Request Handling", "Errors": SNAPSHOT_NOT_FOUND "a SnapshotId that doesn't exists on the leader",
    POSITION_OUT_OF_RANGE "a position that is greater than the size of the snapshot"; and KIP-595's."""
    answer = leader_with().ask_one(**changes)
    assert isinstance(answer, Refused)
    assert type(answer.error) is error


def test_a_replica_that_does_not_lead_names_the_leader() -> None:
    """KIP-630, "Request Handling": NOT_LEADER "when the fetch snapshot request is sent to a replica that is not
    the leader"; "Response Schema": CurrentLeader."""
    leader = leader_with()
    leader.leader = 5
    answer = leader.ask_one(current_leader_epoch=None)
    assert isinstance(answer, Refused)
    assert isinstance(answer.error, NotLeaderOrFollowerError)
    assert (answer.leader, answer.leader_epoch) == (5, EPOCH)


def test_the_end_of_the_snapshot_is_a_position_in_range() -> None:
    leader = leader_with()
    size = leader.store.list(FOLDER)[0].size_bytes
    assert leader.ask_one(position=size) == Chunk(ID, size, size, b"")
    assert isinstance(leader.ask_one(position=size + 1), Refused)


def test_a_request_of_another_cluster_is_refused_whole() -> None:
    """KIP-630, "Request Schema": ClusterId "is used to validate"; the top level error."""
    request = FetchSnapshotRequest(cluster_id="other", replica_id=FOLLOWER, max_bytes=1, partitions=())
    with pytest.raises(InconsistentClusterIdError, match="of cluster other, and this is cluster c"):
        leader_with().ask(request)
    assert (
        leader_with().ask(FetchSnapshotRequest(cluster_id=None, replica_id=FOLLOWER, max_bytes=1, partitions=()))
        == []
    )


def test_a_leader_epoch_that_is_not_known_is_not_checked() -> None:
    """KIP-630, "Request Schema": CurrentLeaderEpoch "-1 for unknown leader epoch"; None here."""
    assert isinstance(leader_with().ask_one(current_leader_epoch=None), Chunk)


# ---------------------------------------------------------------------------------------- fairness


@pytest.mark.parametrize(
    ("max_bytes", "remaining", "shares"),
    [
        (90, [100, 100, 100], [30, 30, 30]),
        (90, [10, 100, 100], [10, 40, 40]),
        (90, [100, 10, 5], [75, 10, 5]),
        (90, [0, 0, 100], [0, 0, 90]),
        (90, [1, 2, 3], [1, 2, 3]),
        (1, [5, 5], [0, 1]),
        (90, [], []),
    ],
)
def test_bytes_are_shared_evenly_and_what_one_leaves_goes_to_others(
    max_bytes: int, remaining: list[int], shares: list[int]
) -> None:
    """KIP-630, "Request Handling", 3: "the leader will evenly distribute the number of bytes sent across all of
    the partitions"."""
    assert share(max_bytes, remaining) == shares


@given(st.integers(1, 1000), st.lists(st.integers(0, 400), min_size=1, max_size=8))
def test_each_gets_at_least_the_average_and_nothing_is_wasted(max_bytes: int, remaining: list[int]) -> None:
    """KIP-630, "Request Handling", 3.1: "Each topic partition is guaranteed to receive at least the average of
    ResponseMaxBytes if that snapshot has enough bytes remaining"; 3.2; "will not send more bytes"."""
    shares = share(max_bytes, remaining)
    average = max_bytes // len(remaining)
    assert all(given >= min(average, left) for given, left in zip(shares, remaining, strict=True))
    assert all(given <= left for given, left in zip(shares, remaining, strict=True))
    assert sum(shares) == min(max_bytes, sum(remaining))


def test_a_response_is_no_larger_than_the_least_of_two_limits() -> None:
    """KIP-630, "Request Handling", 3: "the minimum of MaxBytes in the request and the value configured in
    replica.fetch.response.max.bytes"."""
    leader = Leader(response_max_bytes=300)
    write(leader.store, VALUES)
    request = PartitionRequest(
        topic_id=OWNER, partition=PARTITION, current_leader_epoch=None, snapshot_id=ID, position=0
    )
    for max_bytes, sent in ((200, 200), (400, 300)):
        [answer] = leader.ask(of(request, max_bytes=max_bytes))
        assert isinstance(answer, Chunk)
        assert len(answer.data) == sent


def test_several_partitions_share_a_response_and_each_gets_its_snapshot() -> None:
    leader, stores = Leader(), [MemoryStore() for _ in range(3)]
    for partition in range(3):
        leader.folders[partition] = f"p{partition}"
        write(leader.store, VALUES * (1 + 10 * partition), folder=f"p{partition}", partition=partition)
    sizes: list[int] = []

    def ask(request: FetchSnapshotRequest) -> list[PartitionAnswer]:
        answers = leader.ask(request)
        sizes.append(sum(len(one.data) for one in answers if isinstance(one, Chunk)))
        return answers

    fetches = [
        SnapshotFetch(store, FOLDER, topic_id=OWNER, partition=partition, discover=lambda: WANTED)
        for partition, store in enumerate(stores)
    ]
    outcomes = fetch_snapshots(fetches, ask, cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=900)
    wanted = [leader.store.stat(f"p{partition}/{ID.name}").size_bytes for partition in range(3)]
    assert outcomes == [Fetched(ID, size) for size in wanted]
    assert all(size == 900 for size in sizes[:-1]), "no response has room left while there is more to send"


def test_a_request_for_no_bytes_is_refused() -> None:
    with pytest.raises(InvalidCallError, match="at least one"):
        of(max_bytes=0)


def test_the_id_of_a_chunk_is_the_one_that_was_asked_for() -> None:
    answer = leader_with().ask_one()
    assert isinstance(answer, Chunk)
    assert answer.snapshot_id == SnapshotId(20, 2)
