"""Snapshots of the metadata log between voters, and refused ones (KIP-630, "Fetching Snapshots", "Loading
Snapshots")."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum import checkpoints
from stratalog.engine.quorum.upkeep import due, keep_up
from stratalog.partitions.errors import CorruptSegmentError, StorageError
from stratalog.partitions.paths import CheckpointName, ChunkName, parse_name
from stratalog.snapshots.policy import SnapshotPolicy
from tests.unit.quorum_harness import CLUSTER, Quorum
from tests.unit.quorum_snapshots import committed, ends, listing, path, snapshot
from tests.unit.test_snapshots_format import resealed

CHUNK = 1200
WEEK_MS = 7 * 24 * 60 * 60 * 1000


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snapshot is fetched in chunks."""
    monkeypatch.setattr(checkpoints, "RESPONSE_MAX_BYTES", CHUNK)


def quorum_with_snapshot_on_one() -> tuple[Quorum, ClusterImage]:
    """Voter 1 has a snapshot of the log; voters 2 and 3 have the log, and no part of it."""
    quorum = Quorum(3)
    image = committed(quorum.log(), 1, 2)
    stores = quorum.hooked()
    for store in stores[1:]:
        store.hook = fails_at(lambda what, name: ".checkpoint" in name)
    keep_up(quorum.log(through=stores), quorum.clock, lag_ms=WEEK_MS)
    assert [ends(quorum, broker) for broker in (1, 2, 3)] == [[3], [], []]
    assert chunks(quorum, 2) == []
    return quorum, image


def fails_at(when: Callable[[str, str], bool]) -> Callable[[str, str, Callable[[], object]], object]:
    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        if when(what, name):
            raise StorageError("no such mount")
        return call()

    return hook


def chunks(quorum: Quorum, broker: int) -> list[ChunkName]:
    return sorted(listing(quorum, broker).chunks)


def content(quorum: Quorum, broker: int, end: int = 3) -> bytes:
    (name,) = (name for name in listing(quorum, broker).checkpoints if name.end_offset == end)
    return quorum.stores[broker].read(path(quorum, broker, name))


# ------------------------------------------------------------------------------------- in chunks


@pytest.mark.usefixtures("chunked")
def test_a_large_snapshot_is_fetched_in_chunks_and_frozen() -> None:
    """KIP-630, "Response Handling": parts, validated as a whole, then under the snapshot's name; no part
    remains."""
    quorum, _ = quorum_with_snapshot_on_one()
    snapshot(quorum)
    assert content(quorum, 1) == content(quorum, 2) == content(quorum, 3)
    assert len(content(quorum, 1)) > 2 * CHUNK
    assert [chunks(quorum, broker) for broker in (1, 2, 3)] == [[], [], []]


def test_a_small_snapshot_is_created_in_one_piece() -> None:
    quorum, _ = quorum_with_snapshot_on_one()
    through = quorum.hooked()
    created: list[str] = []

    def note(what: str, name: str, call: Callable[[], object]) -> object:
        assert ".part" not in name
        if what == "create":
            created.append(name)
        return call()

    through[1].hook = note
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=WEEK_MS)
    assert created == [path(quorum, 2, CheckpointName(3, 2))]


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.slow
def test_the_next_caller_after_an_interruption_continues_where_it_was(after: int) -> None:
    """Another driver continues, and no byte is copied twice."""
    quorum, _ = quorum_with_snapshot_on_one()
    through = quorum.hooked()
    created: list[int] = []

    def cut(what: str, name: str, call: Callable[[], object]) -> object:
        part = parse_name(name.rpartition("/")[2])
        if what == "create" and isinstance(part, ChunkName):
            if len(created) == after:
                raise StorageError("the driver stops here")
            created.append(part.position)
        return call()

    through[1].hook = cut
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=WEEK_MS)
    assert [name.position for name in chunks(quorum, 2)] == list(range(0, after * CHUNK, CHUNK))

    def resume(what: str, name: str, call: Callable[[], object]) -> object:
        part = parse_name(name.rpartition("/")[2])
        if what == "create" and isinstance(part, ChunkName):
            created.append(part.position)
        return call()

    through = quorum.hooked()
    through[1].hook = resume
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=WEEK_MS)
    assert content(quorum, 2) == content(quorum, 1)
    assert created == list(range(0, len(content(quorum, 1)), CHUNK))


@pytest.mark.usefixtures("chunked")
def test_parts_that_were_given_up_go_with_the_next_snapshot() -> None:
    """I7: only litter remains, and not for long."""
    quorum, _ = quorum_with_snapshot_on_one()
    through = quorum.hooked()
    through[1].hook = fails_at(lambda what, name: what == "stage_writer" and ".checkpoint" in name)
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=WEEK_MS)
    assert chunks(quorum, 2)
    committed(quorum.log(), 3)
    snapshot(quorum)
    assert [chunks(quorum, broker) for broker in (1, 2, 3)] == [[], [], []]
    assert ends(quorum, 2)[-1] == 4


def test_parts_go_also_where_the_next_snapshot_is_a_small_one() -> None:
    quorum, _ = quorum_with_snapshot_on_one()
    quorum.stores[2].create(path(quorum, 2, ChunkName(3, 2, 0)), b"given up")  # type: ignore[arg-type]
    quorum.stores[2].create(path(quorum, 2, ChunkName(9, 2, 0)), b"somebody fetches it")  # type: ignore[arg-type]
    snapshot(quorum)
    assert chunks(quorum, 2) == [ChunkName(9, 2, 0)]


@pytest.mark.usefixtures("chunked")
def test_a_wiped_voter_far_behind_gets_snapshot_and_log_in_the_middle_of_a_commit() -> None:
    """KIP-630, "Changes to Leader Election": snapshot first, then the log after it."""
    quorum = Quorum(3)
    log = quorum.log()
    away = quorum.hooked()
    away[2].hook = fails_at(lambda what, name: True)
    absent = quorum.log(through=away)
    for value in (1, 2, 3):
        committed(absent, value)
        keep_up(absent, quorum.clock, lag_ms=0)
    assert ends(quorum, 3) == []
    image = committed(log, 4)
    assert ends(quorum, 3) == [4]
    assert content(quorum, 3, 4) == content(quorum, 1, 4)
    assert quorum.log().read() == image


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("effect", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_after_a_crash_at_any_change_of_a_transfer_in_chunks_the_next_run_continues(effect: str) -> None:
    """I7, for the transfer."""

    class CrashError(BaseException):
        pass

    for nth in range(1, 200):
        quorum, image = quorum_with_snapshot_on_one()
        through = quorum.hooked()
        calls = 0

        def hook(what: str, name: str, call: Callable[[], object], nth: int = nth) -> object:
            nonlocal calls
            if what not in ("create", "stage_writer", "commit", "delete"):
                return call()
            calls += 1
            if calls == nth and effect == "before":
                raise CrashError
            result = call()
            if calls == nth:
                raise CrashError
            return result

        through[1].hook = hook
        with suppress(CrashError):
            keep_up(quorum.log(through=through), quorum.clock, lag_ms=WEEK_MS)
        assert quorum.log().read() == image
        snapshot(quorum)
        assert content(quorum, 2) == content(quorum, 1)
        assert chunks(quorum, 2) == []
        if calls < nth:
            assert nth > 6, "three parts, staged, named, parts deleted"
            return
    raise AssertionError("it never came to an end")


# ------------------------------------------------------------------------------------- when


def test_an_old_snapshot_of_the_log_is_followed_by_the_next() -> None:
    """KIP-876: any change, however small, if there is a new one."""
    quorum = Quorum()
    log = quorum.log()
    committed(log, 1)
    policy = SnapshotPolicy(max_snapshot_interval_ms=5000)

    def wait() -> str | None:
        return due(log, policy, quorum.clock.now_ms(), by_hand=False)[1]

    assert "bytes of log since" in str(wait())
    quorum.clock.sleep(5)
    assert wait() is None, "the log is so old, and has none"
    snapshot(quorum)
    quorum.clock.sleep(5)
    assert "nothing has been committed since" in str(wait())
    committed(log, 2)
    assert wait() is None
    policy = SnapshotPolicy(max_snapshot_interval_ms=0)
    assert "bytes of log since" in str(wait())


# ------------------------------------------------------------------------------------- bad input


def tampered(name: CheckpointName, data: bytes) -> tuple[Quorum, ClusterImage, list[bytes]]:
    """A log up to 4 and, on every voter, that file as one of its snapshots; its image, and all files."""
    quorum = Quorum(3)
    log = quorum.log()
    committed(log, 1, 2)
    image = committed(log, 3)
    for broker in (1, 2, 3):
        quorum.stores[broker].create(path(quorum, broker, name), data)
    return quorum, image, everything(quorum)


def everything(quorum: Quorum) -> list[bytes]:
    return [
        stored.name.encode() + store.read(stored.name)
        for store in quorum.stores.values()
        for stored in store.list("")
    ]


def whole(cluster_id: str = CLUSTER) -> bytes:
    """The snapshot of such a log."""
    quorum = Quorum(3)
    committed(quorum.log(), 1, 2)
    snapshot(quorum)
    data = content(quorum, 1)
    if cluster_id != CLUSTER:
        listed = listing(quorum, 1)
        state = checkpoints.read_checkpoint(
            CLUSTER, listed.voter, CheckpointName(3, 2), listed.checkpoints[CheckpointName(3, 2)]
        )
        quorum.stores[1].delete([path(quorum, 1, CheckpointName(3, 2))])
        checkpoints.write_checkpoint(cluster_id, listed.voter, state, quorum.clock)
        data = content(quorum, 1)
    return data


def later_version() -> bytes:
    return resealed(whole(), b'"version":0,"end_offset":3', b'"version":1,"end_offset":3')


@pytest.mark.slow
def test_a_bit_flipped_anywhere_is_found_and_the_log_is_used() -> None:
    """The damage is found before the snapshot is loaded; the previous snapshot and the log after it are used.
    (test_snapshots_format flips each byte of a file.)
    """
    data = whole()
    for at in range(0, len(data), 97):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        quorum, image, before = tampered(CheckpointName(3, 2), bytes(flipped))
        assert quorum.log().read() == image
        assert everything(quorum) == before


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(lambda: whole()[:-200], "truncated, or foreign", id="truncated"),
        pytest.param(lambda: b"", "has 0 bytes: it is truncated", id="empty"),
        pytest.param(lambda: b"{}" * 100, "does not begin and end like a Parquet file", id="no Parquet at all"),
        pytest.param(
            lambda: later_version(), "of version 1, but this release reads version 0", id="later version"
        ),
        pytest.param(lambda: whole("other"), "is a snapshot of 'other', not of 'c'", id="of another cluster"),
    ],
)
def test_a_foreign_snapshot_is_skipped_and_named(data: Callable[[], bytes], says: str) -> None:
    """Each of them is named in one note; nothing changes, because the log continues without it."""
    quorum, image, before = tampered(CheckpointName(3, 2), data())
    assert quorum.log().read() == image
    assert everything(quorum) == before
    assert any(str(CheckpointName(3, 2)) in note and says in note for note in quorum.notes)


@pytest.mark.parametrize("data", [lambda: whole("other"), lambda: b"{}"])
def test_a_foreign_snapshot_that_pretends_to_be_the_latest_is_an_error(data: Callable[[], bytes]) -> None:
    """All later work would continue from that state, so one error names it, and nothing changes."""
    name = CheckpointName(3, 9)
    quorum, _, before = tampered(name, data())
    with pytest.raises(CorruptSegmentError, match=str(name)):
        quorum.log().read()
    assert everything(quorum) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [
        "3-2.checkpoint",
        "00000000000000000003.checkpoint",
        "00000000000000000003-2.checkpoint",
        "00000000000000000099-0000000009.checkpoint.part",
        "00000000000000000099-0000000009.checkpoint.tmp",
        "-0000000000000000003-0000000002.checkpoint",
    ],
)
def test_a_file_with_an_odd_name_is_none_of_the_log(odd: str) -> None:
    quorum, image, _ = tampered(CheckpointName(2, 2), whole())
    for broker, voter in zip((1, 2, 3), quorum.voters, strict=True):
        quorum.stores[broker].delete([path(quorum, broker, CheckpointName(2, 2))])
        quorum.stores[broker].create(f"{voter.folder}/{odd}", whole())
    before = everything(quorum)
    assert quorum.log().read() == image
    assert everything(quorum) == before
