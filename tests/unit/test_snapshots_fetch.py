"""FetchSnapshot between two stores (KIP-630, "Fetching Snapshots")."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    SourceChangedError,
    StorageError,
)
from stratalog.partitions.paths import ChunkName
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from stratalog.snapshots.chunks import PartialSnapshot, stale_chunks
from stratalog.snapshots.fetch import ATTEMPTS, FetchedSnapshot, SnapshotChunk, Source
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.fetch_harness import VALUES, Leader, fetch, leader_with, parts
from tests.unit.snapshot_files import FOLDER, ID, LATER, names, read, write

# ------------------------------------------------------------------------------------ the whole way


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1, 999, 1000, 10_000_000])
def test_a_snapshot_is_fetched_in_chunks_verified_and_frozen(max_bytes: int) -> None:
    """KIP-630, "Response Handling": Position is "the response's Position plus the response's
    len(UnalignedRecords)" until Size is reached; then validate, and move to ...checkpoint."""
    leader, follower = leader_with(VALUES if max_bytes > 1 else [b"a"]), MemoryStore()
    outcome = fetch(follower, leader, max_bytes=max_bytes)
    size = leader.store.list(FOLDER)[0].size_bytes
    assert outcome == FetchedSnapshot(ID, size)
    assert follower.read(f"{FOLDER}/{ID.name}") == leader.store.read(f"{FOLDER}/{ID.name}")
    assert names(follower) == [str(ID.name)], "no part stays"
    assert leader.asked == list(range(0, size, max_bytes))


def test_nothing_is_fetched_that_is_not_needed_or_there_already() -> None:
    leader, follower = leader_with(), MemoryStore()
    assert fetch(follower, leader, discover=lambda: None) is None
    write(follower, VALUES)
    assert fetch(follower, leader) == FetchedSnapshot(ID, 0)
    assert leader.asked == []


def test_on_a_file_system_it_is_the_same(tmp_path: Path) -> None:
    for root in ("leader", "follower"):
        (tmp_path / root).mkdir()
    leader, follower = Leader(LocalStore(str(tmp_path / "leader"))), LocalStore(str(tmp_path / "follower"))
    write(leader.store, VALUES)
    assert isinstance(fetch(follower, leader), FetchedSnapshot)
    assert names(follower) == [str(ID.name)]
    assert list(read(follower).values()) == VALUES


# -------------------------------------------------------------------------------------------- parts


def test_a_chunk_is_a_part_file_of_its_position() -> None:
    """KIP-630, "Response Handling", 1: "Copy the bytes ... to ... .checkpoint.part starting at Position"."""
    follower = MemoryStore()
    partial = PartialSnapshot(follower, FOLDER, ID)
    partial.add(b"abc")
    partial.add(b"de")
    prefix = "00000000000000000020-0000000002.checkpoint"
    assert names(follower) == [f"{prefix}.{position:020d}.part" for position in (0, 3)]
    assert (partial.position, PartialSnapshot(follower, FOLDER, ID).position) == (5, 5)


def test_parts_inside_another_folder_are_not_its_own() -> None:
    follower = MemoryStore()
    follower.create(f"{FOLDER}/saved/{ChunkName(20, 2, 0)}", b"abc")
    follower.create(f"{FOLDER}/saved/{ID.name}", b"abc")
    partial = PartialSnapshot(follower, FOLDER, ID)
    assert (partial.position, partial.frozen) == (0, None)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), max_size=8))
def test_parts_of_any_sizes_are_used_or_dropped(spans: list[tuple[int, int]]) -> None:
    """Runs with other sizes of chunks leave overlapping parts: a part counts if it begins at the end of the
    previous one."""
    leader, follower = leader_with([random.Random(1).randbytes(4000)]), MemoryStore()
    whole = leader.store.read(f"{FOLDER}/{ID.name}")
    held = {}
    for position, size in spans:
        if follower.create(f"{FOLDER}/{ChunkName(20, 2, position)}", whole[position : position + size]):
            held[position] = len(whole[position : position + size])
    reached = 0
    while held.get(reached):
        reached += held[reached]
    assert PartialSnapshot(follower, FOLDER, ID).position == reached
    assert isinstance(fetch(follower, leader), FetchedSnapshot)
    assert leader.asked[0] == reached
    assert follower.read(f"{FOLDER}/{ID.name}") == whole
    assert names(follower) == [str(ID.name)]


def test_parts_that_are_longer_than_the_snapshot_are_dropped() -> None:
    """POSITION_OUT_OF_RANGE: they are of another file."""
    leader, follower = leader_with([b"short"]), MemoryStore()
    follower.create(f"{FOLDER}/{ChunkName(20, 2, 0)}", bytes(100_000))
    assert isinstance(fetch(follower, leader), FetchedSnapshot)
    assert names(follower) == [str(ID.name)]


@pytest.mark.parametrize("position", [0, 1000])
def test_a_part_without_bytes_makes_room(position: int) -> None:
    """No chunk is ever an empty file, and a run could not continue from one."""
    leader, follower = leader_with(), MemoryStore()
    follower.create(f"{FOLDER}/{ChunkName(ID.end_offset, ID.epoch, position)}", b"")
    assert isinstance(fetch(follower, leader), FetchedSnapshot)
    assert names(follower) == [str(ID.name)]


def test_a_part_that_cannot_make_room_is_given_up() -> None:
    """A request for the bytes of a missing or damaged part is an attempt."""

    class Stubborn(MemoryStore):
        def delete(self, names: Iterable[str]) -> None:
            """Claims success."""

    leader, follower = leader_with(), Stubborn()
    follower.create(f"{FOLDER}/{ChunkName(ID.end_offset, ID.epoch, 0)}", b"")
    with pytest.raises(SourceChangedError, match="already exists, but is empty"):
        fetch(follower, leader)
    assert len(leader.asked) == ATTEMPTS


def test_parts_of_snapshots_that_are_not_needed_any_more_are_litter() -> None:
    older, same, newer = ChunkName(10, 1, 0), ChunkName(20, 2, 5), ChunkName(40, 4, 0)
    assert stale_chunks([older, same, newer], ID) == [older, same]
    follower = MemoryStore()
    for name in (older, newer):
        follower.create(f"{FOLDER}/{name}", b"litter")
    assert isinstance(fetch(follower, leader_with()), FetchedSnapshot)
    assert names(follower) == [str(ID.name), str(newer)], "somebody fetches the newer one, perhaps"


# --------------------------------------------------------------------- interruptions and other runs


def test_after_an_interruption_at_any_chunk_the_next_run_continues_from_there() -> None:
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
        assert fetch(follower, leader) == FetchedSnapshot(ID, size - 1000 * stop)
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
            assert isinstance(fetch(follower, leader), FetchedSnapshot)
            assert names(follower) == [str(ID.name)]
            assert list(read(follower).values()) == VALUES
        if not crashed:
            break
    assert calls > 20, "that many places to crash at"


def crash_at(leader: Leader, follower: Store, calls: int, *, late: bool, intact: bool = True) -> bool:
    """Run the follower until it dies at that storage call; returns whether it got there. The named files must be
    intact (``intact``), however it died."""
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


@pytest.mark.slow
def test_two_runs_at_once_do_no_harm() -> None:
    """At each chunk of one run another run completes everything."""
    size = leader_with().store.list(FOLDER)[0].size_bytes
    for meanwhile in range(-(-size // 1000)):
        leader, follower = leader_with(), MemoryStore()

        def other_run(count: int, meanwhile: int = meanwhile, follower: Store = follower) -> None:
            if count == meanwhile:
                assert fetch(follower, leader_with(), max_bytes=700) == FetchedSnapshot(
                    ID, size - 1000 * meanwhile
                )

        leader.before = other_run
        assert isinstance(fetch(follower, leader), FetchedSnapshot)
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
                assert isinstance(fetch(follower, leader_with(), max_bytes=900), FetchedSnapshot)

        faults = Faults()
        faults.before = interrupt
        assert isinstance(fetch(faults.wrap("", follower), leader), FetchedSnapshot)
        assert names(follower) == [str(ID.name)]
        assert list(read(follower).values()) == VALUES


def test_storage_that_fails_is_reported_and_leaves_nothing_half_done() -> None:
    faults, follower = Faults(), MemoryStore()

    faults.refuse(StorageError("disk full"), *CHANGES)
    with pytest.raises(StorageError, match="disk full"):
        fetch(faults.wrap("", follower), leader_with())
    assert names(follower) == []


# ------------------------------------------------------------------------------- bytes that are wrong


def test_chunks_of_two_files_of_one_name_are_not_believed() -> None:
    """Replicas snapshot independently (KIP-630, "Overview"): a new leader's file need not have the same bytes."""
    first, second, follower = leader_with(), leader_with([b"other"] * 500), MemoryStore()

    def stop(count: int) -> None:
        if count == 2:
            raise StorageError("the leader changes here")

    first.before = stop
    with pytest.raises(StorageError):
        fetch(follower, first)
    assert isinstance(fetch(follower, second, max_bytes=500), FetchedSnapshot)
    assert list(read(follower).values()) == [b"other"] * 500
    assert parts(follower) == []


def test_files_that_do_not_verify_are_fetched_again_and_never_frozen() -> None:
    """KIP-630, "Response Handling", 3: "Validate the snapshot file" precedes its naming."""
    leader, follower = leader_with(), MemoryStore()
    name = f"{FOLDER}/{ID.name}"
    data = bytearray(leader.store.read(name))
    data[200] ^= 1
    leader.store.delete([name])
    leader.store.create(name, bytes(data))
    with pytest.raises(CorruptSegmentError):
        fetch(follower, leader, max_bytes=5000)
    assert names(follower) == []
    assert leader.asked.count(0) == ATTEMPTS


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_damaged_snapshot_is_replaced_when_its_successor_is_there_and_verified(late: bool) -> None:
    """A flipped bit is found; and nothing is deleted before its successor is safe. A crash between any two storage
    calls does not block the next run."""
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
        assert isinstance(fetch(follower, leader), FetchedSnapshot)
        assert names(follower) == [str(ID.name)]
        assert list(read(follower).values()) == VALUES


def test_a_snapshot_of_another_owner_is_not_frozen_and_not_kept() -> None:
    leader, follower = leader_with(), MemoryStore()
    with pytest.raises(InconsistentClusterIdError):
        fetch(follower, leader, owner="another")
    assert names(follower) == []
    assert leader.asked.count(0) == 1, "the same bytes would come again"


# ------------------------------------------------------------------------------- errors of the leader


def test_the_end_of_the_snapshot_is_a_position_in_range() -> None:
    """KIP-630, "Request Handling", "Errors": SNAPSHOT_NOT_FOUND "a SnapshotId that doesn't exists on the leader",
    POSITION_OUT_OF_RANGE "a position that is greater than the size of the snapshot"."""
    leader = leader_with()
    size = leader.store.list(FOLDER)[0].size_bytes
    assert leader.source().chunk(size, 100) == SnapshotChunk(size, b"")
    with pytest.raises(
        PositionOutOfRangeError, match=rf"has {size} bytes, but the fetch starts at position {size + 1}"
    ):
        leader.source().chunk(size + 1, 100)
    with pytest.raises(SnapshotNotFoundError, match="does not exist"):
        leader.source(LATER).chunk(0, 100)


def test_a_chunk_is_no_larger_than_was_asked_for() -> None:
    chunk = leader_with().source().chunk(3, 200)
    assert len(chunk.data) == 200


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
    outcome = fetch(follower, leader, discover=lambda: leader.source(latest[0]))
    assert outcome is not None
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
    with pytest.raises(SnapshotNotFoundError):
        Leader(faults.wrap("", inner)).source().chunk(0, 100)


def test_the_follower_continues_with_what_it_has_if_the_leader_names_another_replica() -> None:
    old, new, follower = leader_with(), leader_with(), MemoryStore()
    size = new.store.list(FOLDER)[0].size_bytes
    found = iter([old, new])

    def vanish(count: int) -> None:
        if count == 2:
            old.store.delete([f"{FOLDER}/{ID.name}"])

    old.before = vanish
    assert fetch(follower, old, discover=lambda: next(found).source()) == FetchedSnapshot(ID, size - 2000)
    assert new.asked[0] == 2000


def test_if_a_view_is_out_of_date_the_caller_learns_it_and_the_parts_stay() -> None:
    """KIP-630, "Request Handling": the leader epoch is checked at each chunk (KIP-320)."""
    leader, follower = leader_with(), MemoryStore()
    leader.before = lambda count: setattr(leader, "leads", count < 2)
    with pytest.raises(FencedLeaderEpochError):
        fetch(follower, leader)
    assert len(parts(follower)) == 2


def test_a_leader_that_never_has_what_it_names_is_given_up() -> None:
    leader = Leader()
    with pytest.raises(SnapshotNotFoundError):
        fetch(MemoryStore(), leader)
    assert len(leader.asked) == ATTEMPTS


def test_a_leader_that_gives_nothing_is_given_up() -> None:
    class Mute(Source):
        def chunk(self, position: int, max_bytes: int) -> SnapshotChunk:
            return SnapshotChunk(10, b"")

    leader = leader_with()
    with pytest.raises(StorageError, match="returned no bytes from 0 on"):
        fetch(MemoryStore(), leader, discover=lambda: Mute(leader.store, FOLDER, ID))


@pytest.mark.parametrize("kind", [CorruptionError, StorageError, SourceChangedError])
def test_a_fetch_that_cannot_discover_fails_with_the_reason(kind: type[Exception]) -> None:
    def discover() -> Source:
        raise kind("nothing fits")

    with pytest.raises(kind, match="nothing fits"):
        fetch(MemoryStore(), leader_with(), discover=discover)
