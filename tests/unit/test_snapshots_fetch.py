"""FetchSnapshot between two stores (KIP-630, "Fetching Snapshots")."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    InvalidCallError,
    NotLeaderOrFollowerError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    StorageError,
    StratalogError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from partitions.paths import ChunkName
from partitions.store.local import LocalStore
from partitions.store.memory import MemoryStore
from partitions.store.protocol import Store
from snapshots.chunks import PartialSnapshot, stale_chunks
from snapshots.fetch import (
    ATTEMPTS,
    RULES,
    Fetched,
    NotFetched,
    NotNeeded,
    Outcome,
    Rule,
    SnapshotFetch,
    Wanted,
    fetch_snapshots,
)
from snapshots.messages import (
    RESPONSE_MAX_BYTES,
    Chunk,
    FetchSnapshotRequest,
    PartitionAnswer,
    PartitionRequest,
    Refused,
    share,
)
from snapshots.snapshot_id import SnapshotId
from snapshots.source import HostedPartition, SnapshotSource
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.snapshot_files import FOLDER, ID, LATER, OWNER, PARTITION, names, read, write

CLUSTER = "c"
LEADER, FOLLOWER = 1, 2
EPOCH = 7
VALUES = [bytes([n]) * 300 for n in range(20)]
WANTED = Wanted(ID, EPOCH)


class Leader:
    """A broker that leads every partition it has a folder for; ``folders`` by partition."""

    def __init__(self, store: Store | None = None, response_max_bytes: int = RESPONSE_MAX_BYTES) -> None:
        self.store = store or MemoryStore("memory://leader")
        self.folders = {PARTITION: FOLDER}
        self.leader: int | None = LEADER
        self.epoch = EPOCH
        self.asked: list[FetchSnapshotRequest] = []
        self.before: Callable[[int], None] = lambda count: None
        """Called before each answer with how many there were."""
        self._source = SnapshotSource(self._hosted, cluster_id=CLUSTER, response_max_bytes=response_max_bytes)

    def _hosted(self, topic_id: str, partition: int) -> HostedPartition | None:
        folder = self.folders.get(partition)
        if topic_id != OWNER or folder is None:
            return None
        return HostedPartition(
            store=self.store, folder=folder, broker_id=LEADER, leader=self.leader, leader_epoch=self.epoch
        )

    def ask(self, request: FetchSnapshotRequest) -> list[PartitionAnswer]:
        self.before(len(self.asked))
        self.asked.append(request)
        return self._source.answer(request)

    def ask_one(self, **changes: Any) -> PartitionAnswer:
        fields: dict[str, Any] = {
            "topic_id": OWNER,
            "partition": PARTITION,
            "current_leader_epoch": EPOCH,
            "snapshot_id": ID,
            "position": 0,
        }
        return self.ask(of(PartitionRequest(**{**fields, **changes})))[0]


def of(*partitions: PartitionRequest, max_bytes: int = 10_000_000) -> FetchSnapshotRequest:
    return FetchSnapshotRequest(
        cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=max_bytes, partitions=partitions
    )


def fetch(
    store: Store,
    leader: Leader,
    *,
    discover: Callable[[], Wanted | None] = lambda: WANTED,
    max_bytes: int = 1000,
    owner: str | None = None,
) -> Outcome:
    """One run of a follower."""
    one = SnapshotFetch(store, FOLDER, topic_id=OWNER, partition=PARTITION, discover=discover, owner=owner)
    [outcome] = fetch_snapshots([one], leader.ask, cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=max_bytes)
    return outcome


def leader_with(values: Sequence[bytes] = VALUES) -> Leader:
    leader = Leader()
    write(leader.store, values)
    return leader


def parts(store: Store) -> list[str]:
    return [name for name in names(store) if name.endswith(".part")]


# ------------------------------------------------------------------------------------ the whole way


@pytest.mark.parametrize("max_bytes", [1, 999, 1000, 10_000_000])
def test_a_snapshot_is_fetched_in_chunks_verified_and_frozen(max_bytes: int) -> None:
    """KIP-630, "Response Handling": Position is "the response's Position plus the response's
    len(UnalignedRecords)" until Size is reached; then validate, and move to ...checkpoint."""
    leader, follower = leader_with(VALUES if max_bytes > 1 else [b"a"]), MemoryStore()
    outcome = fetch(follower, leader, max_bytes=max_bytes)
    size = leader.store.list(FOLDER)[0].size_bytes
    assert outcome == Fetched(ID, size)
    assert follower.read(f"{FOLDER}/{ID.name}") == leader.store.read(f"{FOLDER}/{ID.name}")
    assert names(follower) == [str(ID.name)], "no part stays"
    assert [one.partitions[0].position for one in leader.asked] == list(range(0, size, max_bytes))


def test_nothing_is_fetched_that_is_not_needed_or_there_already() -> None:
    leader, follower = leader_with(), MemoryStore()
    assert fetch(follower, leader, discover=lambda: None) == NotNeeded()
    write(follower, VALUES)
    assert fetch(follower, leader) == Fetched(ID, 0)
    assert leader.asked == []


def test_a_chunk_is_a_part_file_of_its_position() -> None:
    """KIP-630, "Response Handling", 1: "Copy the bytes ... to ... .checkpoint.part starting at Position"."""
    follower = MemoryStore()
    partial = PartialSnapshot(follower, FOLDER, ID)
    partial.add(Chunk(ID, 10, 0, b"abc"))
    partial.add(Chunk(ID, 10, 3, b"de"))
    partial.add(Chunk(ID, 10, 5, b""))
    prefix = "00000000000000000020-0000000002.checkpoint"
    assert names(follower) == [f"{prefix}.{position:020d}.part" for position in (0, 3)]
    assert (partial.position, PartialSnapshot(follower, FOLDER, ID).position) == (5, 5)


@pytest.mark.parametrize("wrong", [Chunk(ID, 10, 4, b"x"), Chunk(ID, 10, 2, b"x"), Chunk(LATER, 10, 3, b"x")])
def test_bytes_of_another_place_are_refused(wrong: Chunk) -> None:
    partial = PartialSnapshot(MemoryStore(), FOLDER, ID)
    partial.add(Chunk(ID, 10, 0, b"abc"))
    with pytest.raises(InvalidCallError, match="do not go on from byte 3"):
        partial.add(wrong)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=8))
def test_parts_of_any_sizes_are_one_file(spans: list[tuple[int, int]]) -> None:
    """Two runs that ask for other chunk sizes leave parts that overlap; each is used as far as it goes."""
    whole = random.Random(1).randbytes(42)
    follower = MemoryStore()
    held = set()
    for position, size in spans:
        if follower.create(f"{FOLDER}/{ChunkName(20, 2, position)}", whole[position : position + size]):
            held |= set(range(position, position + size))
    reached = next(at for at in range(100) if at not in held)
    partial = PartialSnapshot(follower, FOLDER, ID)
    assert partial.position == reached
    while partial.position < len(whole):
        partial.add(Chunk(ID, len(whole), partial.position, whole[partial.position :][:5]))
    with pytest.raises(CorruptSegmentError, match="as fetched"):
        partial.freeze(owner=OWNER, partition=PARTITION)


# --------------------------------------------------------------------- interruptions and other runs


def test_after_an_interruption_at_any_chunk_the_next_run_goes_on_from_there() -> None:
    size = leader_with().store.list(FOLDER)[0].size_bytes
    for stop in range(-(-size // 1000)):
        leader, follower = leader_with(), MemoryStore()

        def fail(count: int, stop: int = stop) -> None:
            if count == stop:
                raise StorageError("the driver stops here")

        leader.before = fail
        with pytest.raises(StorageError):
            fetch(follower, leader)
        assert len(parts(follower)) == stop
        leader.before = lambda count: None
        assert fetch(follower, leader) == Fetched(ID, size - 1000 * stop)
        assert names(follower) == [str(ID.name)]


def test_a_crash_between_any_two_storage_calls_leaves_what_the_next_run_uses_or_removes() -> None:
    """Before the call, and after it."""
    calls = 0
    while True:
        calls += 1
        for late in (False, True):
            leader, follower = leader_with(), MemoryStore()
            crashed = crash_at(leader, follower, calls, late=late)
            assert isinstance(fetch(follower, leader), Fetched)
            assert names(follower) == [str(ID.name)]
            assert list(read(follower).values()) == VALUES
        if not crashed:
            break
    assert calls > 20, "that many places to crash at"


def crash_at(leader: Leader, follower: Store, calls: int, *, late: bool, intact: bool = True) -> bool:
    """A run of the follower that dies at that storage call; whether it came so far. What it had named by then is
    whole (``intact``), however it died."""
    count = 0

    class Crash(BaseException):
        pass

    def strike(uri: str, what: str, name: str) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise Crash

    faults = Faults()
    if late:
        faults.after = strike
    else:
        faults.before = strike
    try:
        fetch(faults.wrap("", follower), leader)
    except Crash:
        if intact and str(ID.name) in names(follower):
            assert list(read(follower).values()) == VALUES
        return True
    return False


def test_two_runs_at_once_do_no_harm() -> None:
    """At each chunk of one run another one does everything."""
    size = leader_with().store.list(FOLDER)[0].size_bytes
    for meanwhile in range(-(-size // 1000)):
        leader, follower = leader_with(), MemoryStore()

        def other_run(count: int, meanwhile: int = meanwhile, follower: Store = follower) -> None:
            if count == meanwhile:
                assert fetch(follower, leader_with(), max_bytes=700) == Fetched(ID, size - 1000 * meanwhile)

        leader.before = other_run
        assert isinstance(fetch(follower, leader), Fetched)
        assert names(follower) == [str(ID.name)]
        assert list(read(follower).values()) == VALUES


def test_another_run_between_any_two_storage_calls_does_no_harm() -> None:
    for calls in range(1, 40):
        leader, follower = leader_with(), MemoryStore()
        count = 0

        def interrupt(uri: str, what: str, name: str, calls: int = calls, follower: Store = follower) -> None:
            nonlocal count
            count += 1
            if count == calls:
                assert isinstance(fetch(follower, leader_with(), max_bytes=900), Fetched)

        faults = Faults()
        faults.before = interrupt
        assert isinstance(fetch(faults.wrap("", follower), leader), Fetched)
        assert names(follower) == [str(ID.name)]
        assert list(read(follower).values()) == VALUES


def test_chunks_of_two_files_of_one_name_are_not_believed() -> None:
    """Replicas snapshot independently (KIP-630, "Overview"): a new leader's file need not have the same bytes."""
    first, second, follower = leader_with(), leader_with([b"other"] * 500), MemoryStore()

    def stop(count: int) -> None:
        if count == 2:
            raise StorageError("the leader changes here")

    first.before = stop
    with pytest.raises(StorageError):
        fetch(follower, first)
    assert isinstance(fetch(follower, second, max_bytes=500), Fetched)
    assert list(read(follower).values()) == [b"other"] * 500
    assert parts(follower) == []


def test_what_does_not_verify_is_fetched_anew_and_never_frozen() -> None:
    """KIP-630, "Response Handling", 3: "Validate the snapshot file" comes before its name."""
    leader, follower = leader_with(), MemoryStore()
    name = f"{FOLDER}/{ID.name}"
    data = bytearray(leader.store.read(name))
    data[200] ^= 1
    leader.store.delete([name])
    leader.store.create(name, bytes(data))
    outcome = fetch(follower, leader, max_bytes=5000)
    assert isinstance(outcome, NotFetched)
    assert isinstance(outcome.error, CorruptSegmentError)
    assert names(follower) == []
    assert len([one for one in leader.asked if one.partitions[0].position == 0]) == ATTEMPTS


@pytest.mark.parametrize("late", [False, True])
def test_a_damaged_snapshot_is_replaced_when_its_successor_is_there_and_verified(late: bool) -> None:
    """A bit flipped is found; and nothing is deleted before its successor is safe. A crash between any two
    storage calls keeps the next run from nothing."""
    crashed = True
    calls = 0
    while crashed:
        calls += 1
        leader, follower = leader_with(), MemoryStore()
        data = bytearray(leader.store.read(f"{FOLDER}/{ID.name}"))
        data[200] ^= 1
        follower.create(f"{FOLDER}/{ID.name}", bytes(data))
        crashed = crash_at(leader, follower, calls, late=late, intact=False)
        if str(ID.name) not in names(follower):
            assert parts(follower), "it made room for what is here in parts"
        assert isinstance(fetch(follower, leader), Fetched)
        assert names(follower) == [str(ID.name)]
        assert list(read(follower).values()) == VALUES


def test_on_a_file_system_it_is_the_same(tmp_path: Path) -> None:
    for root in ("leader", "follower"):
        (tmp_path / root).mkdir()
    leader, follower = Leader(LocalStore(str(tmp_path / "leader"))), LocalStore(str(tmp_path / "follower"))
    write(leader.store, VALUES)
    assert isinstance(fetch(follower, leader), Fetched)
    assert names(follower) == [str(ID.name)]
    assert list(read(follower).values()) == VALUES


def test_a_snapshot_of_another_owner_is_not_frozen_and_not_kept() -> None:
    leader, follower = leader_with(), MemoryStore()
    outcome = fetch(follower, leader, owner="another")
    assert isinstance(outcome, NotFetched)
    assert isinstance(outcome.error, InconsistentClusterIdError)
    assert names(follower) == []


def test_parts_of_snapshots_that_are_not_needed_any_more_are_litter() -> None:
    older, same, newer = ChunkName(10, 1, 0), ChunkName(20, 2, 5), ChunkName(40, 4, 0)
    assert stale_chunks([older, same, newer], ID) == [older, same]
    follower = MemoryStore()
    for name in (older, newer):
        follower.create(f"{FOLDER}/{name}", b"litter")
    assert isinstance(fetch(follower, leader_with()), Fetched)
    assert names(follower) == [str(ID.name), str(newer)], "somebody fetches the newer one, perhaps"


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


# ---------------------------------------------------------------------------- the follower's rules


def test_every_error_of_the_response_has_its_rule() -> None:
    """KIP-630, "Response Handling", "Errors": "SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE,
    NOT_LEADER_FOR_PARTITION - The follower can rediscover the new snapshot by sending another Fetch request"."""
    assert {kind.code: rule for kind, rule in RULES.items()} == {
        "SNAPSHOT_NOT_FOUND": Rule.REDISCOVER,
        "NOT_LEADER_OR_FOLLOWER": Rule.REDISCOVER,
        "POSITION_OUT_OF_RANGE": Rule.START_OVER,
        "FENCED_LEADER_EPOCH": Rule.GIVE_UP,
        "UNKNOWN_LEADER_EPOCH": Rule.GIVE_UP,
        "UNKNOWN_TOPIC_OR_PARTITION": Rule.GIVE_UP,
    }


@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_a_snapshot_that_is_deleted_in_the_middle_is_given_up_for_the_new_one(when: int) -> None:
    """KIP-630, "Response Handling": SNAPSHOT_NOT_FOUND makes a follower ask again for the id."""
    leader, follower = leader_with(), MemoryStore()
    latest = [ID]

    def delete(count: int) -> None:
        if count == when:
            leader.store.delete([f"{FOLDER}/{ID.name}"])
            write(leader.store, [b"new"], LATER)
            latest[0] = LATER

    leader.before = delete
    outcome = fetch(follower, leader, discover=lambda: Wanted(latest[0], EPOCH))
    assert isinstance(outcome, Fetched)
    assert outcome.snapshot_id == LATER
    assert names(follower) == [str(LATER.name)], "nor does any part of the old one stay"
    assert list(read(follower, LATER).values()) == [b"new"]


def test_a_snapshot_that_is_deleted_between_look_and_read_is_not_found() -> None:
    inner = MemoryStore()
    write(inner, VALUES)
    faults = Faults()

    def delete(uri: str, what: str, name: str) -> None:
        if what == "open":
            inner.delete([name])

    faults.before = delete
    answer = Leader(faults.wrap("", inner)).ask_one()
    assert isinstance(answer, Refused)
    assert isinstance(answer.error, SnapshotNotFoundError)


def test_where_the_leader_has_moved_the_follower_goes_on_there_with_what_it_has() -> None:
    old, follower = leader_with(), MemoryStore()
    new = leader_with()
    size = new.store.list(FOLDER)[0].size_bytes
    at = [old]

    def move(count: int) -> None:
        if count == 2:
            old.leader = 9

    old.before = move

    def discover() -> Wanted:
        at[0] = old if old.leader == LEADER else new
        return WANTED

    one = SnapshotFetch(follower, FOLDER, topic_id=OWNER, partition=PARTITION, discover=discover)
    [outcome] = fetch_snapshots(
        [one], lambda request: at[0].ask(request), cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=1000
    )
    assert outcome == Fetched(ID, size)
    assert new.asked[0].partitions[0].position == 2000


def test_parts_that_are_longer_than_the_snapshot_are_dropped() -> None:
    """POSITION_OUT_OF_RANGE: they are of another file."""
    leader, follower = leader_with([b"short"]), MemoryStore()
    follower.create(f"{FOLDER}/{ChunkName(20, 2, 0)}", bytes(100_000))
    assert isinstance(fetch(follower, leader), Fetched)
    assert names(follower) == [str(ID.name)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda leader: setattr(leader, "epoch", EPOCH + 1), FencedLeaderEpochError),
        (lambda leader: setattr(leader, "epoch", EPOCH - 1), UnknownLeaderEpochError),
        (lambda leader: leader.folders.clear(), UnknownTopicOrPartitionError),
    ],
)
def test_where_a_view_is_out_of_date_the_caller_is_told_and_the_parts_stay(
    change: Callable[[Leader], None], error: type[StratalogError]
) -> None:
    leader, follower = leader_with(), MemoryStore()
    leader.before = lambda count: change(leader) if count == 2 else None
    outcome = fetch(follower, leader)
    assert isinstance(outcome, NotFetched)
    assert type(outcome.error) is error
    assert len(parts(follower)) == 2


def test_a_leader_that_never_has_what_it_names_is_given_up() -> None:
    leader = Leader()
    outcome = fetch(MemoryStore(), leader)
    assert isinstance(outcome, NotFetched)
    assert isinstance(outcome.error, SnapshotNotFoundError)
    assert len(leader.asked) == ATTEMPTS


def test_a_leader_that_sends_nothing_is_given_up() -> None:
    one = SnapshotFetch(MemoryStore(), FOLDER, topic_id=OWNER, partition=PARTITION, discover=lambda: WANTED)
    with pytest.raises(StorageError, match="sends no more bytes"):
        fetch_snapshots(
            [one], lambda request: [Chunk(ID, 10, 0, b"")], cluster_id=None, replica_id=FOLLOWER, max_bytes=1
        )


def test_storage_that_fails_is_told_and_keeps_no_other_partition_from_its_snapshot() -> None:
    leader, good, bad = leader_with(), MemoryStore(), Faults()

    def refuse(uri: str, what: str, name: str) -> None:
        if what in CHANGES:
            raise StorageError("disk full")

    bad.before = refuse
    fetches = [
        SnapshotFetch(store, FOLDER, topic_id=OWNER, partition=PARTITION, discover=lambda: WANTED)
        for store in (bad.wrap("", MemoryStore()), good)
    ]
    outcomes = fetch_snapshots(fetches, leader.ask, cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=1000)
    assert isinstance(outcomes[0], NotFetched)
    assert isinstance(outcomes[1], Fetched)
    assert names(good) == [str(ID.name)]


def test_a_fetch_that_cannot_discover_fails_with_the_reason() -> None:
    def discover() -> Wanted:
        raise CorruptionError("nothing fits")

    outcome = fetch(MemoryStore(), leader_with(), discover=discover)
    assert isinstance(outcome, NotFetched)
    assert str(outcome.error) == "nothing fits"


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
