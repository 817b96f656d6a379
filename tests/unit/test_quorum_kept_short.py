"""A commit keeps the metadata log short: the cost of opening, reading and committing does not grow with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog.engine.quorum.batch
import stratalog.engine.quorum.repeated
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.bootstrap import FoundLog
from stratalog.engine.quorum.cache import load_cache, save_cache
from stratalog.engine.quorum.client import MOST_BATCHES, MOST_UNREPEATED, MetadataClient
from stratalog.partitions.paths import CheckpointName, ClaimName, DataName, parse_name
from tests.unit.quorum_harness import CLUSTER, Quorum, config, unreachable
from tests.unit.quorum_snapshots import bases, ends, listing, takes_no_snapshot


def commit(client: MetadataClient, count: int, first: int = 1) -> None:
    for value in range(first, first + count):
        client.submit(AlterConfigs(None, {"segment.bytes": str(value)}))


def requests(quorum: Quorum, work: Callable[[], object]) -> int:
    before = sum(store.counts.requests for store in quorum.stores.values())
    work()
    return sum(store.counts.requests for store in quorum.stores.values()) - before


def newest(quorum: Quorum) -> str:
    return quorum.log().read().configs["segment.bytes"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("voters", "commits"),
    [
        (1, 10),
        (1, 1_000),
        pytest.param(1, 10_000, marks=pytest.mark.nightly),
        (3, 10),
        pytest.param(3, 1_000, marks=pytest.mark.slow),
    ],
)
def test_opening_reading_and_committing_are_flat(voters: int, commits: int) -> None:
    """The folders hold the batches of two snapshots."""
    opening, reading, committing = (6, 2, 3) if voters == 1 else (9, 4, 9)
    quorum = Quorum(voters)
    client = quorum.client()
    commit(client, commits)
    assert requests(quorum, quorum.look) <= opening
    assert requests(quorum, client.image) == reading
    counts = [requests(quorum, lambda at=at: commit(client, 1, commits + at)) for at in range(1, 5)]
    assert counts == [committing] * 4
    for broker in quorum.stores:
        assert len(quorum.names(broker)) <= 2 * MOST_BATCHES + 4
    assert newest(quorum) == str(commits + 4)
    assert quorum.notes == []


@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.slow
def test_opening_is_a_handful_of_requests_at_every_length_of_the_log(voters: int) -> None:
    """The snapshot is due next, was just taken, or is in between; the first read of a driver then requests no
    file.
    """
    opening, reading = (6, 2) if voters == 1 else (9, 4)
    quorum = Quorum(voters)
    client = quorum.client()
    for value in range(1, 2 * MOST_BATCHES + 2):
        commit(client, 1, value)
        found: list[FoundLog] = []
        assert requests(quorum, lambda to=found: to.append(quorum.find())) <= opening
        log = quorum.log(value, hint=found[0].state)
        assert requests(quorum, log.read) == reading
        assert log.read().configs["segment.bytes"] == str(value)


@pytest.mark.slow
def test_drivers_that_come_and_go_leave_no_batch_that_has_to_be_read_alone(tmp_path: Path) -> None:
    """Each driver opens the cluster from its machine's cache, and commits once."""
    quorum = Quorum(3)
    for value in range(1, MOST_BATCHES - 2):
        cached = load_cache(tmp_path, CLUSTER, pytest.fail)
        found = quorum.find(cached)
        save_cache(tmp_path, CLUSTER, found.state, pytest.fail)
        log = quorum.log(value, hint=found.state)
        commit(MetadataClient(log, quorum.clock, pytest.fail), 1, value)
        assert requests(quorum, quorum.find) == 7
    assert newest(quorum) == str(value)


def test_after_batches_that_repeat_nothing_the_log_is_kept_short_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of an earlier release; opening requests each of them until the next commit."""
    quorum = Quorum(3)
    with monkeypatch.context() as before:
        before.setattr(stratalog.engine.quorum.batch, "encode_repeated", lambda batches: {})
        commit(quorum.client(), 10)
    assert requests(quorum, quorum.look) == 6 + 11
    commit(quorum.client(1), 1, 11)
    assert len(ends(quorum)) == 1
    assert requests(quorum, quorum.look) == 9
    assert newest(quorum) == "11"


@pytest.mark.slow
def test_large_batches_are_few_requests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches repeat few of the previous batches, and a snapshot comes early."""
    # The size of two such commits.
    monkeypatch.setattr(stratalog.engine.quorum.repeated, "MOST_REPEATED_BYTES", 150)
    quorum = Quorum(3)
    client = quorum.client()
    for value in range(1, 60):
        commit(client, 1, value)
        assert requests(quorum, quorum.look) <= 9 + MOST_UNREPEATED - 1
    assert newest(quorum) == "59"
    assert len(bases(quorum)) <= 12


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("voters", [1, 3])
def test_drivers_that_commit_once_leave_neither_claims_nor_epochs(voters: int) -> None:
    """Each driver claims an epoch, and each batch has the lineage; both reach back to the log start."""
    quorum = Quorum(voters)
    for value in range(1, 6 * MOST_BATCHES):
        commit(quorum.client(value), 1, value)
        found = listing(quorum, 1)
        assert len(found.claim_names) <= 1 + MOST_BATCHES
        assert len(found.files) <= 2 * MOST_BATCHES + 2
    batch = max(found.files)
    assert found.files[batch].size_bytes <= 1.5 * min(one.size_bytes for one in found.files.values())
    log = quorum.log()
    log.read()
    assert len(list(log.last_known.lineage)) <= 2 * MOST_BATCHES + 2


@pytest.mark.slow
def test_one_of_several_drivers_takes_the_snapshot() -> None:
    quorum = Quorum()
    clients = [quorum.client(seed) for seed in range(4)]
    made: set[int] = set()
    for value in range(4 * MOST_BATCHES):
        commit(clients[value % 4], 1, 1 + value)
        made.update(ends(quorum))
    assert len(made) == 4
    assert all(
        later - earlier >= MOST_BATCHES for earlier, later in zip(sorted(made), sorted(made)[1:], strict=False)
    )


def test_a_command_that_is_refused_or_changes_nothing_takes_no_snapshot() -> None:
    quorum = Quorum()
    log = quorum.log()
    for value in range(MOST_BATCHES + 1):
        log.claim()
        log.commit(config(value + 1))
    client = quorum.client()
    commit(client, 1, MOST_BATCHES + 1)
    assert ends(quorum) == []
    commit(client, 1, MOST_BATCHES + 2)
    assert ends(quorum) == [MOST_BATCHES + 3]


def test_a_snapshot_that_fails_is_a_note_and_retried_after_as_many_batches() -> None:
    quorum = Quorum()
    through = quorum.hooked()
    client = quorum.client(through=through)
    through[0].hook = takes_no_snapshot
    commit(client, MOST_BATCHES)
    (note,) = quorum.notes
    assert "a later commit tries again" in note
    commit(client, MOST_BATCHES - 2)
    assert len(quorum.notes) == 1
    through[0].hook = lambda what, name, call: call()
    commit(client, 2, 1000)
    assert len(ends(quorum)) == 1
    assert newest(quorum) == "1001"


@pytest.mark.slow
def test_a_voter_without_the_snapshot_does_not_make_every_commit_try() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    client = quorum.client(through=through)
    through[2].hook = takes_no_snapshot
    commit(client, MOST_BATCHES + 10)
    assert len(quorum.notes) == 1
    assert (len(ends(quorum, 1)), len(ends(quorum, 3))) == (1, 0)
    through[2].hook = unreachable
    commit(client, 3 * MOST_BATCHES, 100)
    assert len(bases(quorum, 1)) <= 2 * MOST_BATCHES + 2
    assert len(bases(quorum, 3)) >= MOST_BATCHES, "a voter that is away keeps what it has"
    through[2].hook = lambda what, name, call: call()
    commit(client, MOST_BATCHES, 1000)
    assert ends(quorum, 3)[-1] == ends(quorum, 1)[-1]
    assert len(bases(quorum, 3)) <= 2 * MOST_BATCHES + 2


@pytest.mark.slow
def test_a_folder_holds_nothing_else() -> None:
    quorum = Quorum()
    commit(quorum.client(), 3 * MOST_BATCHES)
    kinds = {type(parse_name(name)) for name in quorum.names(1)}
    assert kinds == {CheckpointName, ClaimName, DataName}
