"""Mirrors by tasks: many partitions at once, each piece at its offset or not at all; the driver does what a task
cannot do. The tasks are threads of this process; ``tests/spark`` tests Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import end_mirror, mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.tasks import LocalTasks, Silent
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import RetriableError
from tests.bridges.memory_source import MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

BULK = MirrorOptions(replication_factor=3, bulk_offsets=1)


class TwoTasks(LocalTasks):
    """Claims to run two tasks at once; here they run one after the other."""

    processes = 2

    def __init__(self) -> None:
        super().__init__(1)


class DriverDies(TwoTasks):
    """The driver dies when its tasks have ended."""

    def run(self, *given: Any) -> Iterator[Any]:
        list(super().run(*given))
        raise KeyboardInterrupt
        yield


def by_tasks(live: LiveCluster) -> Ports:
    return ports_of(live.cluster).with_tasks(TwoTasks())


def mirrored(live: LiveCluster, source: MemorySource, options: MirrorOptions = BULK) -> Report:
    """Mirror once, and compare."""
    report = with_ports(mirror, by_tasks(live))(source, ["t"], options).raise_for_failures()
    with_ports(compare, ports_of(live.cluster))(source, ["t"]).raise_for_failures()
    return report


def some(partitions: int = 5) -> MemorySource:
    """Partitions with records, gaps, tombstones and epochs, of different lengths; the last one is empty."""
    source = MemorySource(partitions)
    for number, log in enumerate(source.logs[:-1]):
        for epoch in range(3):
            log.epoch = epoch * 2
            log.append(*("abc" * (number + 1)), None, gaps=number)
    return source


@pytest.mark.slow
def test_tasks_mirror_what_the_driver_would_have_mirrored(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    source.groups = {"g": {("t", 0): OffsetAndMetadata(2)}}
    report = mirrored(live, source)
    assert report.totals["tasks"] == 2
    assert report.totals["records"] == sum(len(log.records) for log in source.logs)
    assert [row["lag"] for row in report.rows] == [0] * 5
    assert report.rows[0]["leader_epoch"] == 4
    assert report.totals["group_offsets"] == 1
    live.cluster.verify(deep=True).raise_for_failures()
    assert "tasks" not in mirrored(live, source).totals, "nothing is new"
    source.logs[1].append("more")
    few = mirrored(live, source, MirrorOptions(bulk_offsets=2))
    assert ("tasks" in few.totals, few.totals["records"]) == (False, 1), "the driver does the little"


@pytest.mark.slow
def test_tasks_that_run_with_another_mirror_make_no_second_copy(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    other = ports_of(live.driver())
    calls = iter(range(1000))

    def between() -> None:
        if next(calls) in (1, 4):
            source.between, kept = (lambda: None), source.between
            source.logs[0].append("more", gaps=1)
            mirror(
                other.metadata, other.storage, other.execution, other.memory, source, ["t"], MirrorOptions()
            ).raise_for_failures()
            source.between = kept

    source.between = between
    assert with_ports(mirror, by_tasks(live))(source, ["t"], BULK).raise_for_failures().totals["tasks"]
    source.between = lambda: None
    mirrored(live, source)
    live.cluster.verify(deep=True).raise_for_failures()


def test_the_next_driver_acknowledges_the_records_that_tasks_of_a_dead_driver_appended(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some(3)
    with pytest.raises(KeyboardInterrupt):
        with_ports(mirror, ports_of(live.cluster).with_tasks(DriverDies()))(source, ["t"], BULK)
    assert live.cluster.fetch("t", 0, 0).records.num_rows == 0, "it is in the log, and not acknowledged"
    assert mirrored(live, source).totals["records"] == 0
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_records_that_cannot_be_acknowledged_are_a_failure(tmp_path: Path) -> None:
    """A driver has died before it acknowledged its last append, and then a replica was lost."""
    live, source = LiveCluster(tmp_path, on_disk=True), MemorySource(2)
    two = MirrorOptions(replication_factor=2, bulk_offsets=1)
    source.groups = {"g": {("t", 0): OffsetAndMetadata(1)}}
    mirrored(live, source, two)
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "2"})
    source.logs[0].append("a")
    with pytest.raises(KeyboardInterrupt):
        with_ports(mirror, ports_of(live.cluster).with_tasks(DriverDies()))(source, ["t"], two)
    view = live.cluster.image.view(live.cluster.image.topic("t").topic_id, 0)
    with live.unreachable(next(broker for broker in view.isr if broker not in (1, view.leader))):
        other = live.driver()
        report = with_ports(mirror, ports_of(other))(source, ["t"], two)
        assert [(failure.item, failure.code) for failure in report.failures] == [
            ("t-0", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
        ]
        assert (report.rows[0]["log_end"], report.totals["group_offsets"]) == (1, 0)
        assert other.fetch("t", 0, 0).records.num_rows == 0
    assert mirrored(live, source, two).totals["group_offsets"] == 1


@pytest.mark.parametrize("start", [4, 9])
@pytest.mark.slow
def test_the_driver_mirrors_the_partitions_that_a_task_cannot_read(start: int, tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    calls = iter(range(1000))

    def between() -> None:
        if next(calls) == 2:
            source.logs[3].start = start

    source.between = between
    report = with_ports(mirror, by_tasks(live))(source, ["t"], BULK).raise_for_failures()
    assert report.rows[3]["lag"] == 0
    assert report.rows[3]["log_start"] == start
    with_ports(compare, ports_of(live.cluster))(source, ["t"]).raise_for_failures()


def test_a_source_that_falls_silent_in_a_task_is_a_failure_that_the_next_run_repairs(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    calls = iter(range(1000))

    def between() -> None:
        if next(calls) >= 2:
            raise RetriableError("the source is silent")

    source.between = between
    with pytest.raises(RetriableError, match="is silent"):
        with_ports(mirror, by_tasks(live))(source, ["t"], BULK)
    source.between = lambda: None
    mirrored(live, source)


@pytest.mark.slow
def test_a_leader_that_goes_while_tasks_append_is_replaced_by_the_driver(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path, voters=(3,), on_disk=True), some()
    mirrored(live, source)
    for log in source.logs:
        log.append("later")
    leader = ports_of(live.cluster).metadata.image().view(live.cluster.image.topic("t").topic_id, 0).leader

    def goes() -> None:
        if live.root(1).exists():
            live.root(1).rename(tmp_path / "gone")

    source.between = goes
    report = with_ports(mirror, by_tasks(live))(source, ["t"], BULK).raise_for_failures()
    assert leader == 1
    assert [row["lag"] for row in report.rows] == [0] * 5
    with_ports(compare, ports_of(live.cluster))(source, ["t"]).raise_for_failures()


def test_a_topic_that_is_a_mirror_no_more_is_left_alone(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    mirrored(live, source)
    source.logs[0].append("later")

    class Ends(Silent):
        """The mirror is ended after the log ends were read."""

        def start(self, operation: str, items: int, unit: str) -> None:
            with_ports(end_mirror, ports_of(live.cluster))(["t"])

    report = with_ports(mirror, ports_of(live.cluster).with_tasks(TwoTasks(), progress=Ends()))(
        source, ["t"], BULK
    )
    assert [(failure.item, failure.code) for failure in report.failures] == [("t-0", "POLICY_VIOLATION")]
    assert report.rows[0]["lag"] == 1


@pytest.mark.slow
def test_tasks_share_the_throttle_and_end_at_the_budget(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), MemorySource(2)
    source.records_a_read = 1
    for log in source.logs:
        for epoch in range(100):  # one piece per epoch
            log.epoch = epoch
            log.append("x" * 1000)
    began = live.clock.now_ms()
    report = with_ports(mirror, by_tasks(live))(
        source, ["t"], replace(BULK, throttle_bytes_per_s=1000, budget_s=90)
    ).raise_for_failures()
    assert live.clock.now_ms() - began >= 90_000
    assert int(report.totals["tasks"] or 0) > 2, "readers do not wait for the end of the run"
    assert 0 < int(report.totals["lag"] or 0) < 200
    mirrored(live, source)
