"""The engine's own topics stay short: the requests of a group's commit, and the remaining files, do not grow with
earlier commits; and upkeep removes ids that are no longer used."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.records.state_log import read_state
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from stratalog.engine.state.keyed import TRANSACTIONS
from stratalog.partitions.paths import CheckpointName, DataName, parse_name
from tests.ports import ports_of
from tests.unit.transact_harness import Ledger, put

HOUR_S = 3600


@pytest.fixture
def live(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path).begin()


def commit(live: Ledger, driver: Cluster, times: int, every_s: float) -> list[int]:
    """Commits of one group, with the background work of each; yields the requests of each."""
    counts = []
    behind = ports_of(driver).memory.behind_appends
    assert behind is not None
    for _ in range(times):
        live.clock.sleep(every_s)
        with driver.measured() as measure:
            driver.groups.commit("g", {("t", 0): 0}).raise_for_failures()
        counts.append(measure.counts.requests)
        behind.wait()
    return counts


def held(live: Ledger, topic: str) -> list[str]:
    """The names in all replicas of the topic's partition."""
    names = [path.rpartition("/") for path in live.on_brokers() if f"/{topic}-" in path]
    return [name for _, _, name in names]


@pytest.mark.parametrize("commits", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_a_commit_of_a_group_is_flat(live: Ledger, commits: int) -> None:
    driver = live.driver(keeps_short=True)
    first = commit(live, driver, 10, 60)
    commit(live, driver, commits, 60)
    last = commit(live, driver, 10, 60)
    assert sorted(last)[5] == sorted(first)[5]
    assert max(last) <= 2 * max(first)
    assert len(held(live, OFFSETS_TOPIC)) < 3 * 60


@pytest.mark.slow
def test_a_log_that_merges_rewrite_has_its_snapshot_in_time(live: Ledger) -> None:
    """The files of such a log are never as old as its records."""
    driver = live.driver(keeps_short=True)
    for _ in range(4):
        commit(live, driver, 30, HOUR_S / 100)
        driver.merge().raise_for_failures()
        driver.snapshot().raise_for_failures()
    kinds = [type(parse_name(name)) for name in held(live, OFFSETS_TOPIC)]
    assert kinds.count(CheckpointName) == 3


@pytest.mark.slow
def test_with_upkeep_the_log_of_a_group_starts_at_a_snapshot(live: Ledger) -> None:
    driver = live.driver(keeps_short=True)
    names: list[int] = []
    for _ in range(8):
        commit(live, driver, 30, HOUR_S / 30)
        driver.maintain().raise_for_failures()
        names.append(len(held(live, OFFSETS_TOPIC)))
    assert max(names[4:]) <= max(names[:4])
    bases = [name.base_offset for name in map(parse_name, held(live, OFFSETS_TOPIC)) if isinstance(name, DataName)]
    assert min(bases) > 120
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(0)}


@pytest.mark.slow
def test_transactions_that_are_over_are_forgotten_and_abandoned_ones_ended(live: Ledger) -> None:
    """transactional.id.expiration.ms; only maintain removes these ids."""
    live.cluster.topics.alter_configs(None, {"transactional.id.expiration.ms": str(2 * HOUR_S * 1000)})
    driver = live.driver(keeps_short=True)
    for number in range(10):
        with driver.transactions.begin(f"job-{number}") as transaction:
            put(transaction, {"t-0": str(number)})
    put(driver.transactions.begin("abandoned"), {"t-1": "never"})
    for _ in range(6):
        live.clock.sleep(HOUR_S)
        live.driver().maintain().raise_for_failures()
    ports = ports_of(live.driver())
    [view] = ports.metadata.image().views(TRANSACTIONS_TOPIC)
    read = read_state(ports.storage, ports.clock, ports.memory, view, TRANSACTIONS)
    assert read.state.transactions == {}
    bases = [
        name.base_offset for name in map(parse_name, held(live, TRANSACTIONS_TOPIC)) if isinstance(name, DataName)
    ]
    assert len(bases) <= 3, "its log is in its snapshot"
    with driver.transactions.begin("later") as transaction:
        put(transaction, {"t-1": "x"})
    assert live.seen() == {"t-0": [str(number) for number in range(10)], "t-1": ["x"], "u-0": []}
