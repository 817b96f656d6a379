"""Spark's own faults, on a standalone cluster of processes: speculative copies, retried tasks, executors killed in
the middle of their work, two drivers at once.

Gates in storage (``gates``) hold a process at a call until the test has caused an event, so no test waits for a
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog import Cluster
from tests.spark.gates import Gate, Gates
from tests.spark.reading_back import read_back
from tests.spark.remote_driver import RemoteDriver
from tests.spark.spark_cluster import write_cluster_file
from tests.spark.standalone import standalone
from tests.unit.harness import batch

pytestmark = [pytest.mark.spark, pytest.mark.classic("its drivers have sessions of their own")]

RECORDS = 40
"""The initial number of records, in appends of ten; those of a tested append follow."""


@dataclass(frozen=True, slots=True)
class Workers:
    """A Spark cluster with a driver in another process, and a stratalog cluster that this process uses as well."""

    folder: Path
    gates: Gates
    spark: RemoteDriver
    here: Cluster

    def topic(self, name: str, job: str) -> None:
        """A topic on two brokers with work for the job: appends with ``acks=leader``; tiered, and merged or
        not."""
        configs = {
            "remote.storage.enable": str(job in ("tier", "retain", "verify")).lower(),
            "segment.bytes": "1000000" if job == "merge" else "1",
            "segment.merge.min.files": "2",
            "retention.ms": "-1",
            "local.retention.bytes": "0",
            "file.delete.delay.ms": "0",
        }
        self.here.topics.create(name, partitions=2, replication_factor=2, configs=configs)
        for sequence, start in enumerate(range(0, RECORDS, 10)):
            values = [batch(map(str, range(start + p, start + 10, 2))) for p in (0, 1)]
            acks = "leader" if job == "replicate" and start else "all"
            self.append(name, {0: values[:1], 1: values[1:]}, sequence, acks)
        if job in ("retain", "verify"):
            self.here.tier(name).raise_for_failures()

    def append(self, name: str, batches: dict[int, list[pa.RecordBatch]], sequence: int, acks: str) -> None:
        """Append as this process's producer."""
        self.here.append_batches(name, batches, producer="here", sequence=sequence, acks=acks).raise_for_failures()

    def check(self, name: str, records: int) -> None:
        """Check that all records equal the source, once each, in order, and that all copies agree."""
        assert read_back(self.here, name) == {
            p: [str(number).encode() for number in range(p, records, 2)] for p in (0, 1)
        }
        self.here.replicate(name).raise_for_failures()
        self.here.verify(name).raise_for_failures()

    def gate(self, job: str, name: str) -> Gate:
        """A gate in the middle of a job's work on partition 0: where a task names its written file."""
        view = self.here.image.views(name)[0]
        (follower,) = set(view.replicas) - {view.leader}
        leader_root, follower_root = (rf"/b{broker}/.*{name}-.*/0\.\d+/" for broker in (view.leader, follower))
        return {
            "append": Gate("commit", rf"{leader_root}\d+\.\d+\.parquet"),
            "replicate": Gate("commit", rf"{follower_root}\d+\.\d+\.parquet"),
            "merge": Gate("commit", rf"{leader_root}\d+-\d+\.\d+\.parquet"),
            "tier": Gate("commit", rf"/remote/{name}-.*\.parquet"),
            "retain": Gate("create", rf"{leader_root}\d+\.local"),
            "verify": Gate("open", rf"{follower_root}.*\.parquet"),
        }[job]

    def start(self, job: str, name: str) -> int:
        """Start a job on Spark; returns the number of records afterwards."""
        if job == "append":
            self.spark.start("append", topic=name, start=RECORDS, end=RECORDS + 20, producer="there", sequence=0)
            return RECORDS + 20
        self.spark.start(job, topic=name)
        return RECORDS


JOBS = ("append", "replicate", "merge", "tier", "retain", "verify")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "gates").mkdir()
    with ExitStack() as stack:
        file = write_cluster_file(folder)
        here = Cluster.format(file)
        master = stack.enter_context(standalone(folder)).master
        driver = RemoteDriver(master, file, folder / "gates", folder / "driver.log")
        stack.callback(driver.end)
        yield Workers(folder, Gates(folder / "gates"), driver, here)


# --------------------------------------------------------------------- more than one attempt


@pytest.mark.nightly
@pytest.mark.long("waits until Spark starts a speculative copy")
@pytest.mark.sample(1)
@pytest.mark.parametrize("job", JOBS)
def test_a_speculative_copy_overtakes_an_attempt_that_is_slow(workers: Workers, job: str) -> None:
    """One attempt stops in the middle of its work until the other has ended the job; then it continues as a
    zombie."""
    name = f"slow-{job}"
    workers.topic(name, job)
    gate = workers.gates.close(workers.gate(job, name))
    records = workers.start(job, name)
    workers.gates.stopped(gate)
    assert_all_done(job, workers.spark.report())
    workers.gates.open(gate)
    workers.gates.passed(gate)
    workers.check(name, records)


@pytest.mark.long("starts executors, and kills one")
@pytest.mark.sample(2)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_executor_killed_in_the_middle_of_its_work(workers: Workers, job: str, after: bool) -> None:
    """kill -9 of the executor before and after a file has got its name."""
    name = f"killed-{job}-{after}"
    workers.topic(name, job)
    wanted = workers.gate(job, name)
    gate = workers.gates.close(Gate(wanted.call, wanted.path, after=after))
    records = workers.start(job, name)
    workers.gates.stopped(gate).kill_executor()
    assert_all_done(job, workers.spark.report())
    workers.gates.open(gate)
    workers.check(name, records)


@pytest.mark.sample(1)
@pytest.mark.parametrize("job", ["append", "replicate"])
def test_a_worker_killed_in_the_middle_of_its_work(workers: Workers, job: str) -> None:
    name = f"worker-{job}"
    workers.topic(name, job)
    gate = workers.gates.close(workers.gate(job, name))
    records = workers.start(job, name)
    workers.gates.stopped(gate).kill_worker()
    assert_all_done(job, workers.spark.report())
    workers.gates.open(gate)
    workers.check(name, records)


def assert_all_done(job: str, report: dict[str, Any]) -> None:
    assert report["failures"] == []
    assert [row["partition"] for row in report["rows"]] == [0, 1]
    if job == "append":
        assert {row["outcome"] for row in report["rows"]} <= {"acknowledged", "duplicate"}


# ------------------------------------------------------------------------ all attempts are lost


def test_an_append_of_which_all_attempts_are_lost_is_unknown_and_the_same_sequence_ends_it(
    workers: Workers,
) -> None:
    """There is no Spark exception: partition 1 has its records, partition 0 has not, and the job cannot know the
    outcome."""
    workers.topic("lost", "append")
    wanted = workers.gate("append", "lost")
    gate = workers.gates.close(Gate(wanted.call, wanted.path, times=100, die=True))
    records = workers.start("append", "lost")
    report = workers.spark.report()
    assert {row["outcome"] for row in report["rows"]} == {"unknown"}
    assert {failure["code"] for failure in report["failures"]} == {"OUTCOME_UNKNOWN"}
    (message,) = {failure["message"] for failure in report["failures"]}
    assert "Spark aborted the job" in message
    assert "with the same producer and sequence" in message
    workers.gates.open(gate)
    workers.start("append", "lost")
    assert_all_done("append", workers.spark.report())
    workers.check("lost", records)


@pytest.mark.sample(1)
@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("append", "verify")])
def test_a_job_of_which_all_attempts_are_lost_says_so_and_the_next_run_ends_it(workers: Workers, job: str) -> None:
    name = f"given-up-{job}"
    workers.topic(name, job)
    wanted = workers.gate(job, name)
    gate = workers.gates.close(Gate(wanted.call, wanted.path, times=100, die=True))
    workers.start(job, name)
    failures = workers.spark.report()["failures"]
    assert {failure["code"] for failure in failures} == {"RETRIABLE"}
    assert {failure["item"] for failure in failures} <= {f"{name}-0", f"{name}-1"}
    assert all("run the operation again" in failure["message"] for failure in failures)
    workers.gates.open(gate)
    records = workers.start(job, name)
    assert_all_done(job, workers.spark.report())
    workers.check(name, records)


# -------------------------------------------------------------------------- two drivers at once


@pytest.mark.sample(2)
@pytest.mark.parametrize("job", [job for job in JOBS if job != "append"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_two_runs_of_a_job_overlap(workers: Workers, job: str, after: bool) -> None:
    """All attempts of one run stop in the middle of their work while the other run, by a driver in another
    process, begins and ends."""
    name = f"twice-{job}-{after}"
    workers.topic(name, job)
    wanted = workers.gate(job, name)
    gate = workers.gates.close(Gate(wanted.call, wanted.path, after=after, times=100))
    records = workers.start(job, name)
    workers.gates.stopped(gate)
    ours = getattr(workers.here, job)(name).raise_for_failures()
    assert ours.rows
    workers.gates.open(gate)
    theirs = workers.spark.report()
    assert_clear(theirs)
    workers.check(name, records)
    assert_all_done(job, workers.spark.run(job, topic=name))


def assert_clear(report: dict[str, Any]) -> None:
    """Check that the loser succeeded, or that its error says to try again."""
    assert {failure["code"] for failure in report["failures"]} <= {"RETRIABLE", "SOURCE_CHANGED"}


def without_times(records: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as Spark sends records without a timestamp: the append sets it."""
    index = records.schema.get_field_index("timestamp")
    field = records.schema.field(index)
    return records.set_column(index, field, pa.nulls(records.num_rows, field.type))


def test_two_drivers_append_the_same_sequence_at_once(workers: Workers) -> None:
    """The later driver finds a duplicate at the same offsets: the same rows, of a DataFrame there and of Arrow
    batches here, have the same digest."""
    workers.topic("same", "append")
    wanted = workers.gate("append", "same")
    gate = workers.gates.close(Gate(wanted.call, wanted.path, times=100))
    records = workers.start("append", "same")
    workers.gates.stopped(gate)
    values = {p: [without_times(batch(map(str, range(RECORDS + p, RECORDS + 20, 2))))] for p in (0, 1)}
    ours = workers.here.append_batches("same", values, producer="there", sequence=0).raise_for_failures()
    workers.gates.open(gate)
    theirs = workers.spark.report()
    assert_all_done("append", theirs)
    assert theirs["rows"][0]["outcome"] == "duplicate"
    assert [row["base_offset"] for row in theirs["rows"]] == [row["base_offset"] for row in ours.rows]
    workers.check("same", records)


def test_two_drivers_append_to_the_same_partition_at_once(workers: Workers) -> None:
    """Nothing is overwritten: the records of the later driver follow, contiguous and in order."""
    workers.topic("race", "append")
    wanted = workers.gate("append", "race")
    gate = workers.gates.close(Gate(wanted.call, wanted.path, times=100))
    workers.start("append", "race")
    workers.gates.stopped(gate)
    values = [batch(map(str, range(1000, 1010)))]
    workers.append("race", {0: values}, sequence=9, acks="all")
    workers.gates.open(gate)
    assert_all_done("append", workers.spark.report())
    found = read_back(workers.here, "race")[0]
    assert found[-20:-10] == [str(number).encode() for number in range(1000, 1010)]
    assert found[-10:] == [str(number).encode() for number in range(RECORDS, RECORDS + 20, 2)]
    workers.here.verify("race").raise_for_failures()
