"""What the protocol's operations ask of storage, call by call.

The table stands in ``bench.calls``, each number with its reason, for ``make bench`` prints it,
too. Who makes an operation call once more, or once less, has to say why there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench.bench import TOPIC, record_batch
from bench.calls import BROKERS, FILE, PARTITION, RUN, SCENARIOS, CountedCluster, Scenario
from bench.counting import LIST, READ, STAT
from stratalog.engine.brokers.probe import probe_brokers
from stratalog.tiering import topic_table
from tests.ports import ports_of, with_ports

IDLE = next(scenario for scenario in SCENARIOS if scenario.what == "idle sync")
IDLE_TIER = next(scenario for scenario in SCENARIOS if scenario.what == "idle tier")
SYNC = next(scenario for scenario in SCENARIOS if scenario.what == "sync")


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: str(scenario.what))
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Each of the table's operations."""
    assert isinstance(request.param, Scenario)
    return request.param


@pytest.mark.slow
def test_an_operation_makes_the_calls_of_the_table_and_no_other(scenario: Scenario) -> None:
    assert scenario.measured() == {per: scenario.expected(per) for per in scenario.per}


def test_no_operation_makes_fewer_calls_than_the_protocol_asks_for(scenario: Scenario) -> None:
    for per in scenario.per:
        assert scenario.least(per) <= scenario.expected(per)
    assert all(call.because for call in scenario.calls)


def test_the_costs_of_runs_partitions_and_files_add_up() -> None:
    partitions, files = 3, 4
    expected = SYNC.expected(RUN)
    for _ in range(partitions):
        expected += SYNC.expected(PARTITION)
    for _ in range(partitions * files):
        expected += SYNC.expected(FILE)
    assert SYNC.counted(partitions, files) == expected


@pytest.mark.slow
def test_a_copy_of_many_files_lists_nobody_again() -> None:
    for files in (1, 40):
        assert SYNC.counted(1, files)[LIST] == SYNC.expected(RUN)[LIST] + BROKERS


def test_a_driver_that_goes_on_opens_no_file_of_an_idle_partition_again(tmp_path: Path) -> None:
    made = CountedCluster(tmp_path)
    IDLE.prepare(made, 1, 1)
    driver = made.driver()
    first, second = (made.calls_of(driver.replicate) for _ in range(2))
    assert first - second == Counter({READ: IDLE.expected(PARTITION)[READ]})
    assert second == IDLE.expected(RUN) + Counter({LIST: BROKERS, STAT: BROKERS})


def test_a_tier_run_with_nothing_to_do_reads_each_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And asks the remote for nothing else, however many partitions and segments there are. (The schedule is read
    on each broker that keeps a copy of it.)"""
    made = CountedCluster(tmp_path)
    IDLE_TIER.prepare(made, 5, 1)
    driver = made.driver()
    opened: list[str] = []
    monkeypatch.setattr(topic_table, "DeltaTable", lambda uri, **_: opened.append(uri) or DeltaTable(uri))
    found = made.calls_of(driver.tier)
    assert found[LIST] == IDLE_TIER.expected(RUN)[LIST] + 5
    assert len(opened) == 1


def test_a_partition_in_which_something_happened_is_looked_at(tmp_path: Path) -> None:
    """What spares the other calls is no answer of its own: it holds for what was listed, and no longer."""
    made = CountedCluster(tmp_path)
    IDLE_TIER.prepare(made, 2, 1)
    made.append(1)
    report = made.driver().tier().raise_for_failures()
    assert [row["uploaded_files"] for row in report.rows] == [1, 0]
    assert made.driver().tier().raise_for_failures().totals["uploaded_files"] == 0


@pytest.mark.parametrize("partitions", [1, 2])
def test_brokers_that_are_as_registered_cost_a_stat_each(tmp_path: Path, partitions: int) -> None:
    made = CountedCluster(tmp_path)
    IDLE.prepare(made, partitions, 1)
    driver = made.driver()
    image = driver.image
    known = made.calls_of(lambda: with_ports(probe_brokers, ports_of(driver))(image))
    assert known == Counter({STAT: BROKERS})
    unknown = made.calls_of(lambda: with_ports(probe_brokers, ports_of(driver))())
    assert unknown == known + Counter({LIST: 1, READ: 1})  # the metadata, and the root of its voter


def test_a_transaction_of_three_appends_costs_less_than_twice_their_calls(tmp_path: Path) -> None:
    """To a partition; to one more it is two appends more, records and marker. The state changes three times, for
    as many partitions as there are: when it begins, when it is decided, when it is complete."""
    made = CountedCluster(tmp_path)
    made.cluster.topics.create(TOPIC, partitions=3, replication_factor=BROKERS)
    driver = made.driver()
    record = record_batch(pa.array([b"one"], pa.binary()))

    def appends(*partitions: int) -> None:
        for partition in partitions:
            driver.append_batches(TOPIC, {partition: [record]}).raise_for_failures()

    def transaction(*partitions: int) -> None:
        with driver.transactions.begin("three") as t:
            for partition in partitions:
                t.append_batches(TOPIC, {partition: [record]})

    appends(0, 1, 2)
    transaction(0, 1, 2)
    plain = made.calls_of(lambda: appends(0, 0, 0)).total()
    assert plain == made.calls_of(lambda: appends(0, 1, 2)).total() == 63
    assert made.calls_of(lambda: transaction(0, 0, 0)).total() == 125 < 2 * plain
    assert made.calls_of(lambda: transaction(0, 1, 2)).total() == 125 + 2 * 14
