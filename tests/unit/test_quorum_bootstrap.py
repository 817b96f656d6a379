"""The first batch of a metadata log, and finding the voters that it names (protocol section 5; V9)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.bootstrap import bootstrap, find_log
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.errors import (
    InconsistentClusterIdError,
    InvalidCallError,
    LogDirError,
    NoMajorityError,
    StorageAuthenticationError,
    StorageError,
)
from stratalog.partitions.root import format_root
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from tests.unit.quorum_harness import CLUSTER, HookedStore, Quorum, unreachable


def new_root(quorum: Quorum, broker_id: int, cluster_id: str = CLUSTER) -> MemoryStore:
    store = MemoryStore(f"memory://new-{broker_id}", quorum.clock)
    format_root(store, cluster_id, broker_id, quorum.new_id)
    return store


def log_over(quorum: Quorum, voters: list[Voter]) -> MetadataLog:
    return MetadataLog(CLUSTER, voters, clock=quorum.clock, rng=random.Random(0), new_id=quorum.new_id)


def test_the_first_batch_names_the_cluster_and_its_voters() -> None:
    quorum = Quorum(3)
    image = quorum.log().read()
    assert image.cluster_id == CLUSTER
    assert image.voters == tuple(VoterId(v.broker_id, v.directory_id) for v in quorum.voters)


def test_bootstrapping_again_changes_nothing() -> None:
    quorum = Quorum(3)
    before = quorum.names(1)
    bootstrap(CLUSTER, quorum.log(), quorum.voters, {})
    assert quorum.names(1) == before


@pytest.mark.slow
def test_a_bootstrap_that_died_half_way_is_finished_by_the_next() -> None:
    """I7, at every store call of three voters."""
    quorum = Quorum(1)

    def attempt(stop: int) -> bool:
        """Whether the bootstrap finished before the call number ``stop``."""
        calls = 0

        def hook(what: str, name: str, call: Callable[[], object]) -> object:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt
            return call()

        voters = []
        for broker in (1, 2, 3):
            store = HookedStore(new_root(quorum, broker))
            voters.append(Voter(broker, store, format_root(store, CLUSTER, broker, quorum.new_id).directory_id))
            store.hook = hook
        calls = 0
        with suppress(KeyboardInterrupt):
            bootstrap(CLUSTER, log_over(quorum, voters), voters, {})
        ended = calls < stop
        stop = 0
        bootstrap(CLUSTER, log_over(quorum, voters), voters, {})
        assert len(log_over(quorum, voters).read().voters) == 3
        return ended

    assert not attempt(1)
    assert any(attempt(stop) for stop in range(2, 100))


def test_a_voter_that_cannot_be_reached_might_hold_the_log() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[2].hook = unreachable
    voters = [Voter(v.broker_id, s, v.directory_id) for v, s in zip(quorum.voters, through, strict=True)]
    with pytest.raises(StorageError, match="no such mount"):
        bootstrap(CLUSTER, log_over(quorum, voters), voters, {})


def test_a_second_cluster_is_not_made_over_a_log_that_is_lost() -> None:
    """A wiped voter that is formatted again, while another broker knows the cluster, is a loss, not a start."""
    quorum = Quorum()
    other = new_root(quorum, 2)
    wiped = new_root(quorum, 1)
    voter = Voter(1, wiped, format_root(wiped, CLUSTER, 1, quorum.new_id).directory_id)
    with pytest.raises(InvalidCallError, match=r"broker 2 .* no voter has its metadata"):
        bootstrap(CLUSTER, log_over(quorum, [voter]), [voter], {2: other})
    assert len(wiped.list("")) == 1


def test_other_voters_than_the_logs_are_refused() -> None:
    quorum = Quorum(1)
    with pytest.raises(InvalidCallError, match="not to 'c' with"):
        bootstrap(CLUSTER, quorum.log(), [*quorum.voters, Voter(2, s := new_root(quorum, 2), _directory(s))], {})


def found(cluster_id: str, candidates: Mapping[int, Store], others: Mapping[int, Store]) -> list[Voter]:
    """The voters that are found if the cluster file names ``candidates``."""
    return list(find_log(cluster_id, candidates.keys(), {**candidates, **others}).voters)


def _directory(store: Store) -> str:
    return format_root(store, CLUSTER, 2, lambda: "").directory_id


def test_voters_are_found_with_the_directories_that_the_log_names() -> None:
    quorum = Quorum(3)
    assert found(CLUSTER, quorum.stores, {}) == quorum.voters


def test_a_wiped_voter_is_found_as_what_it_was() -> None:
    quorum = Quorum(3)
    stores = {**quorum.stores, 2: new_root(quorum, 2)}
    seen = found(CLUSTER, stores, {})
    assert [v.directory_id for v in seen] == [v.directory_id for v in quorum.voters]
    log = log_over(quorum, seen)
    assert log.read().cluster_id == CLUSTER  # the other two are a majority


def test_an_unreachable_minority_does_not_hinder_finding() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[0].hook = unreachable
    seen = found(CLUSTER, dict(enumerate(through, start=1)), {})
    assert [v.broker_id for v in seen] == [1, 2, 3]
    through[1].hook = through[2].hook = unreachable
    with pytest.raises(NoMajorityError, match="no metadata voter can be read: no such mount"):
        found(CLUSTER, dict(enumerate(through, start=1)), {})


def test_voters_that_all_refuse_the_caller_are_no_lost_majority() -> None:
    """The remedy is other credentials; SASL_AUTHENTICATION_FAILED says so, NO_MAJORITY does not."""

    def refuse(*_: object) -> None:
        raise StorageAuthenticationError("wrong credentials")

    quorum = Quorum(3)
    through = quorum.hooked()
    for store in through:
        store.hook = refuse
    with pytest.raises(StorageAuthenticationError, match="wrong credentials"):
        found(CLUSTER, dict(enumerate(through, start=1)), {})
    through[0].hook = unreachable
    with pytest.raises(NoMajorityError, match="no such mount; wrong credentials"):
        found(CLUSTER, dict(enumerate(through, start=1)), {})


@pytest.mark.parametrize("formatted", [False, True])
def test_a_cluster_that_was_never_formatted_is_one_clear_error(formatted: bool) -> None:
    quorum = Quorum()
    store = new_root(quorum, 1) if formatted else MemoryStore("memory://blank")
    with pytest.raises(InvalidCallError, match=r"cluster 'c' has no metadata: create it with Cluster\.format"):
        found(CLUSTER, {1: store}, {})
    if formatted:
        fresh = [Voter(1, store, format_root(store, CLUSTER, 1, quorum.new_id).directory_id)]
        with pytest.raises(InvalidCallError, match=r"create it with Cluster\.format"):
            log_over(quorum, fresh).read()


@pytest.mark.parametrize("formatted", [False, True])
def test_a_lost_voter_is_distinguished_from_a_cluster_that_never_existed(formatted: bool) -> None:
    quorum = Quorum()
    store = new_root(quorum, 1) if formatted else MemoryStore("memory://blank")
    with pytest.raises(InvalidCallError, match="a voter's storage was lost or is not mounted"):
        found(CLUSTER, {1: store}, {2: new_root(quorum, 2)})


def test_foreign_roots_are_named() -> None:
    quorum = Quorum()
    with pytest.raises(InconsistentClusterIdError, match=r"broker 1 belongs to cluster 'd', not to 'c'"):
        found(CLUSTER, {1: new_root(quorum, 1, "d")}, {})
    with pytest.raises(LogDirError, match="belongs to broker 7"):
        found(CLUSTER, {1: new_root(quorum, 7)}, {})


def test_voters_are_not_changed_by_editing_the_file() -> None:
    quorum = Quorum(1)
    stores = {**quorum.stores, 2: new_root(quorum, 2)}
    with pytest.raises(
        InvalidCallError, match=r"names brokers \[1, 2\] as voters, but the metadata log names \[1\]"
    ):
        found(CLUSTER, stores, {})


def test_voters_are_found_however_long_the_log_has_become() -> None:
    quorum = Quorum(3)
    for seed in range(3):
        quorum.client(seed).submit(AlterConfigs(None, {"segment.bytes": str(seed + 1)}))
    assert found(CLUSTER, quorum.stores, {}) == quorum.voters
