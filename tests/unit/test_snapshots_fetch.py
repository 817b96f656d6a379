"""FetchSnapshot between two stores (KIP-630, "Fetching Snapshots")."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    InvalidCallError,
    SnapshotNotFoundError,
    SourceChangedError,
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
    Rule,
    SnapshotFetch,
    Wanted,
    fetch_snapshots,
)
from snapshots.messages import (
    Chunk,
    Refused,
)
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.fetch_harness import (
    CLUSTER,
    EPOCH,
    FOLLOWER,
    LEADER,
    VALUES,
    WANTED,
    Leader,
    fetch,
    leader_with,
    parts,
)
from tests.unit.snapshot_files import FOLDER, ID, LATER, OWNER, PARTITION, names, read, write

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


def test_parts_inside_another_folder_are_not_its_own() -> None:
    follower = MemoryStore()
    follower.create(f"{FOLDER}/saved/{ChunkName(20, 2, 0)}", b"abc")
    follower.create(f"{FOLDER}/saved/{ID.name}", b"abc")
    partial = PartialSnapshot(follower, FOLDER, ID)
    assert (partial.position, partial.frozen) == (0, None)


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


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every one"])
def test_a_crash_between_any_two_storage_calls_leaves_what_the_next_run_uses_or_removes(step: int) -> None:
    """Before the call, and after it."""
    calls = 0
    while True:
        calls += step
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


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every one"])
def test_another_run_between_any_two_storage_calls_does_no_harm(step: int) -> None:
    for calls in range(1, 40, step):
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


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize("position", [0, 1000])
def test_a_part_without_bytes_makes_room(position: int) -> None:
    """No chunk is ever kept as an empty file, and nothing could go on from one."""
    leader, follower = leader_with(), MemoryStore()
    follower.create(f"{FOLDER}/{ChunkName(ID.end_offset, ID.epoch, position)}", b"")
    assert isinstance(fetch(follower, leader), Fetched)
    assert names(follower) == [str(ID.name)]


def test_a_part_that_cannot_make_room_is_given_up() -> None:
    """Whatever takes the place of a part, to ask for its bytes again is an attempt."""

    class Stubborn(MemoryStore):
        def delete(self, names: Iterable[str]) -> None:
            """Says that it did."""

    leader, follower = leader_with(), Stubborn()
    follower.create(f"{FOLDER}/{ChunkName(ID.end_offset, ID.epoch, 0)}", b"")
    outcome = fetch(follower, leader)
    assert isinstance(outcome, NotFetched)
    assert isinstance(outcome.error, SourceChangedError)
    assert len(leader.asked) == ATTEMPTS


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
