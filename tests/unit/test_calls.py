"""The storage calls of the protocol's operations.

The table is in ``bench.calls``, with the reason for each number, because ``make bench`` prints the table, too. A
change of an operation's number of calls must change the reason there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench.bench import TOPIC, record_batch
from bench.calls import BROKERS, FILE, PARTITION, RUN, SCENARIOS, CountedCluster, Scenario
from bench.counting import COPY, CREATE, LIST, READ, STAT, CountingStore
from stratalog import Cluster, Report
from stratalog.engine.brokers.probe import probe_brokers
from stratalog.partitions.segments.reader import forget
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


def test_a_driver_that_continues_opens_no_file_of_an_idle_partition_again(tmp_path: Path) -> None:
    made = CountedCluster(tmp_path)
    IDLE.prepare(made, 1, 1)
    driver = made.driver()
    first, second = (made.calls_of(driver.replicate) for _ in range(2))
    assert first - second == Counter({READ: IDLE.expected(PARTITION)[READ]})
    assert second == IDLE.expected(RUN) + Counter({LIST: BROKERS, STAT: BROKERS})


def test_a_tier_run_with_nothing_to_do_reads_each_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier run makes no other remote request, for any number of partitions and segments. (The schedule is read
    on each broker that has a copy of it.)
    """
    made = CountedCluster(tmp_path)
    IDLE_TIER.prepare(made, 5, 1)
    driver = made.driver()
    opened: list[str] = []
    monkeypatch.setattr(topic_table, "DeltaTable", lambda uri, **_: opened.append(uri) or DeltaTable(uri))
    found = made.calls_of(driver.tier)
    assert found[LIST] == IDLE_TIER.expected(RUN)[LIST] + 5
    assert len(opened) == 1


def test_a_partition_in_which_something_happened_is_inspected(tmp_path: Path) -> None:
    """The cache that saves the other calls is not an independent answer: it is valid for the listed state only."""
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
    # Two more calls: the metadata, and the root of its voter.
    assert unknown == known + Counter({LIST: 1, READ: 1})


def test_an_append_that_adds_a_field_costs_an_append_and_the_commit_of_the_field(tmp_path: Path) -> None:
    """The metadata is not read again after the commit."""
    made = CountedCluster(tmp_path)
    made.cluster.topics.create(TOPIC, partitions=1, replication_factor=BROKERS, value="a STRING")
    driver = made.driver()

    def append(*fields: str) -> Counter[str]:
        value = pa.StructArray.from_arrays([pa.array(["v"]) for _ in fields], names=list(fields))
        batch = record_batch(value)
        return made.calls_of(
            lambda: driver.append_batches(TOPIC, {0: [batch]}, on_unknown_field="add").raise_for_failures()
        )

    append("a")
    plain = append("a")
    adding = [append("a", "b"), append("a", "b", "c")]
    altering = made.calls_of(lambda: driver.topics.alter(TOPIC, value="a STRING, b STRING, c STRING, d STRING"))
    assert adding[-1] - plain == altering
    # This append includes the first claim of this driver.
    assert adding[0] - plain == altering + Counter({CREATE: 1, LIST: 2, READ: 2})


def calls_of_idle(folder: Path, look: Callable[[Cluster], Report]) -> list[Counter[str]]:
    """The calls of a new driver's look at idle clusters of 4 and of 8 partitions."""
    found = []
    for partitions in (4, 8):
        (folder / str(partitions)).mkdir()
        made = CountedCluster(folder / str(partitions))
        IDLE.prepare(made, partitions, 1)
        forget()
        driver = made.driver()
        found.append(made.calls_of(lambda: look(driver).raise_for_failures()))  # noqa: B023 - called at once
    return found


@pytest.mark.parametrize("check", [lambda c: c.verify(TOPIC, deep=True), lambda c: c.heal(TOPIC)])
def test_a_check_of_all_bytes_reads_each_file_and_each_epoch_once(
    tmp_path: Path, check: Callable[[Cluster], Report]
) -> None:
    """6 requests per partition with three replicas and one small file. On each broker, one walk and one look at
    the root list all partitions.
    """
    few, many = calls_of_idle(tmp_path, check)
    assert many - few == Counter({READ: 4 * 2 * BROKERS})
    assert not few - many


def test_the_first_round_of_maintain_looks_at_each_replica_once(tmp_path: Path) -> None:
    """Replicate lists the replicas; merge and retain see in its listings that there is no work. The scrub reads
    everything.
    """
    found = []
    for partitions in (32, 64):
        (tmp_path / str(partitions)).mkdir()
        made = CountedCluster(tmp_path / str(partitions))
        made.cluster.topics.create(
            TOPIC, partitions=partitions, replication_factor=BROKERS, configs={"retention.ms": "-1"}
        )
        made.append(partitions)
        forget()
        driver = made.driver()
        found.append(made.calls_of(lambda: driver.maintain().raise_for_failures()))  # noqa: B023 - called at once
    assert (found[1] - found[0]).total() <= 20 * 32


def test_a_description_reads_the_lineages_and_one_footer_of_a_partition(tmp_path: Path) -> None:
    """A follower whose last file equals the leader's by name and size ends at the same offset."""
    few, many = calls_of_idle(tmp_path, lambda driver: driver.describe())
    assert many - few == Counter({READ: 4 * (BROKERS + 1)})
    assert not few - many


def test_verify_looks_again_for_files_that_a_walk_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that misses files, like a torn listing, makes no finding; a lost file is found."""
    made = CountedCluster(tmp_path)
    IDLE.prepare(made, 4, 1)
    driver = made.driver()
    with monkeypatch.context() as torn:
        torn.setattr(CountingStore, "walk", lambda *_: [])
        assert driver.verify(TOPIC, deep=True).ok
    view = driver.image.views(TOPIC)[2]
    replica = ports_of(driver).storage.replicas(view).replica(view.isr[-1])
    replica.store.delete([file.object.name for file in replica.list().data])
    [failure] = driver.verify(TOPIC, deep=True).failures
    assert "offset 0 is missing" in failure.message or "offsets" in failure.message


@pytest.mark.parametrize(("replicas", "puts", "gets"), [(3, 7, 4), (1, 3, 2)])
def test_a_later_append_to_a_bucket_makes_a_fixed_number_of_requests(
    tmp_path: Path, replicas: int, puts: int, gets: int
) -> None:
    """Requests at a PUT's price: the file and the high watermark of the append on each replica, and one listing.
    Requests at a GET's price: one read of the file, and a look at the root of each replica.
    """
    found = []
    for partitions in (1, 2):
        (tmp_path / str(partitions)).mkdir()
        made = CountedCluster(tmp_path / str(partitions))
        made.cluster.topics.create(TOPIC, partitions=partitions, replication_factor=replicas)
        made.append(partitions)
        found.append(made.calls_of(lambda: made.append(partitions)))  # noqa: B023 - called at once
    each = found[1] - found[0]
    assert (each[CREATE] + each[LIST] + each[COPY], each[READ] + each[STAT]) == (puts, gets)
    assert puts == 2 * replicas + 1
    assert gets == replicas + 1


def test_a_transaction_of_three_appends_costs_less_than_twice_their_calls(tmp_path: Path) -> None:
    """The calls are for one partition; each further partition adds two appends: records and marker. For any number
    of partitions, the state changes three times: when the transaction begins, when it is decided, and when it is
    complete.
    """
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
    assert plain == made.calls_of(lambda: appends(0, 1, 2)).total() == 54
    assert made.calls_of(lambda: transaction(0, 0, 0)).total() == 104 < 2 * plain
    assert made.calls_of(lambda: transaction(0, 1, 2)).total() == 104 + 2 * 11
