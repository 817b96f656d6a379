"""Erasing while other commands change the partition: elections, and erasures of other runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.metadata.partition_commands import AlterPartition
from stratalog.engine.reading.fetch import fetch_many
from stratalog.engine.reading.look import look
from stratalog.engine.records import rounds
from stratalog.engine.replication import append as append_module
from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.partitions.errors import InvalidCallError, StorageError
from stratalog.partitions.paths import DataName
from stratalog.partitions.runner import Done
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.ports import ports_of
from tests.unit.at_calls import during
from tests.unit.cluster_harness import rows_of
from tests.unit.erase_harness import KEPT, KEY, OTHER, SECRET, Erasable, traces
from tests.unit.faulty_store import Faults
from tests.unit.snapshot_harness import keyed
from tests.unit.test_upkeep_erase_remote import Tiered


def around_each(
    monkeypatch: pytest.MonkeyPatch, step: str, then: Callable[[int], None], before: Callable[[int], None]
) -> None:
    """Call ``before`` before and ``then`` after each call of this step, with its number from 0."""
    task = getattr(erasing, step)
    number = 0

    def hooked(work: Any) -> Any:
        nonlocal number
        present, number = number, number + 1
        before(present)
        try:
            return task(work)
        finally:
            then(present)

    monkeypatch.setattr(erasing, step, hooked)


def refuse_writes_on(faults: Faults, broker: int) -> None:
    error = StorageError("it refuses writes for now")
    faults.refuse(error, "create", "commit", at=f"b{broker}", of="/t-")


@pytest.mark.parametrize("times", [1, 2, 100])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_leader_elected_before_the_isr_shrinks_lets_no_stale_member_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, lasting: bool
) -> None:
    """A member whose root refuses writes misses the erasure, and the shrink is refused."""
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap)

    def begin(number: int) -> None:
        if lasting or number < times:
            refuse_writes_on(faults, 3)

    def elect(number: int) -> None:
        faults.none()
        if number < times:
            live.driver().elect("t", leader=2 if number % 2 == 0 else 1).raise_for_failures()

    around_each(monkeypatch, "erase_partition", elect, begin)
    report = live.erase(KEY)
    if times == 100:
        assert not report.whole
        assert {one.code for one in report.failures} >= {"FENCED_LEADER_EPOCH"}
        assert "leaves the ISR" not in str(report.notes)
        return
    assert report.whole is not lasting
    assert ("broker 3 leaves the ISR" in str(report.notes)) is lasting
    assert (3 in live.isr()) is not lasting
    if not lasting:
        live.driver().elect("t", leader=3).raise_for_failures()
    live.cluster.replicate()
    assert KEY not in str(live.cluster.fetch("t", 0, 0).records.to_pylist())
    assert live.erase(KEY).whole
    assert live.everywhere() == KEPT


def test_a_stale_member_elected_before_the_isr_shrinks_erases_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap)

    def begin(number: int) -> None:
        if number == 0:
            refuse_writes_on(faults, 3)

    def elect(number: int) -> None:
        faults.none()
        if number == 0:
            live.driver().elect("t", leader=3).raise_for_failures()

    around_each(monkeypatch, "erase_partition", elect, begin)
    assert live.erase(KEY).whole
    assert live.replicas().view.leader == 3
    assert live.everywhere() == KEPT
    assert traces(live, KEY, SECRET) == []


def test_a_shrink_that_is_refused_for_good_is_a_failure_of_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap)
    around_each(monkeypatch, "erase_partition", lambda _: faults.none(), lambda _: refuse_writes_on(faults, 3))
    decide = AlterPartition.decide

    def refuse(command: AlterPartition, image: Any) -> Any:
        bad = AlterPartition(tuple(type(one)(**{**_fields(one), "isr": ()}) for one in command.proposals))
        return decide(bad, image)

    monkeypatch.setattr(AlterPartition, "decide", refuse)
    report = live.erase(KEY)
    assert not report.whole
    assert InvalidCallError.code in {one.code for one in report.failures}
    assert "leaves the ISR" not in str(report.notes)


def _fields(proposal: Any) -> dict[str, Any]:
    return {name: getattr(proposal, name) for name in proposal.__dataclass_fields__}


@pytest.mark.parametrize("step", ["find_records", "erase_partition", "clean"])
def test_an_erasure_that_another_run_has_committed_is_carried_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The other run ends before it carries out its erasure."""
    live = Erasable(tmp_path)

    def other(number: int) -> None:
        if number:
            return

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            carried_out = 0 if step == "find_records" else 1
            patch.setattr(
                erasing,
                "erase_partition",
                lambda work: stop() if len(work.replicas.view.erasures) > carried_out else task(work),
            )
            with pytest.raises(KeyboardInterrupt):
                live.driver().erase("t", [OTHER])

    task = erasing.erase_partition
    around_each(monkeypatch, step, lambda _: None, other)
    report = live.erase(KEY)
    assert rows_of(report, "records") == [(3,)]
    assert report.whole
    assert traces(live, KEY, OTHER, SECRET) == []
    assert live.everywhere() == {}


@pytest.mark.parametrize("step", ["plan_partition", "find_records", "erase_partition", "clean"])
def test_a_task_that_meets_files_of_another_erasure_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The other run erases everything else between the look at the metadata and the task."""
    live = Erasable(tmp_path)
    numbers = iter([0])
    task = getattr(erasing, step)

    def other(_: int) -> None:
        if (number := next(numbers, None)) is not None:
            live.put((f"x-{number}", "1"), (OTHER, "1"))
            with monkeypatch.context() as patch:
                patch.setattr(erasing, step, task)
                live.driver().erase("t", [OTHER]).raise_for_failures()

    around_each(monkeypatch, step, lambda _: None, other)
    report = live.erase(KEY, dry_run=step == "plan_partition")
    assert report.ok
    if step != "plan_partition":
        assert live.everywhere() == {6: ("x-0", "1")}
        assert live.erase(KEY).whole
        assert traces(live, KEY, OTHER, SECRET) == []


@pytest.mark.parametrize("stalls_s", [0, 3600])
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("first", ["the late writer's", "another writer's", None])
def test_an_append_that_takes_the_name_of_an_erased_file_is_not_lost(
    tmp_path: Path, stalls_s: int, more: int, first: str | None
) -> None:
    """The append finds the end of the log before another append, whose file an erasure then deletes. Appends after
    the erasure continue the log after the taken name. ``first`` is the first append of the log.
    """
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap, fill=False)
    late = live.driver()
    if first:
        writer = late if first == "the late writer's" else live.driver()
        writer.append_batches("t", {0: [keyed([(OTHER, "1")], 1)]}).raise_for_failures()

    def before(uri: str, what: str, name: str) -> None:
        if what in ("create", "commit") and "/t-" in name and name.endswith(".parquet"):
            faults.none()
            live.put((KEY, SECRET))
            live.erase(KEY, now=True).raise_for_failures()
            for _ in range(more):
                other = live.driver()  # another producer: its footer need not name the erased append's producer
                other.append_batches("t", {0: [keyed([(OTHER, "more")], 1)]}).raise_for_failures()
            live.clock.sleep(stalls_s)

    faults.before = before
    late.append_batches("t", {0: [keyed([(OTHER, "2"), (OTHER, "3")], 1)]}).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    erased = 1 if first else 0
    rows = [(OTHER, "more")] * more + [(OTHER, "2"), (OTHER, "3")]
    assert live.everywhere() == {**({0: (OTHER, "1")} if first else {}), **dict(enumerate(rows, erased + 1))}
    assert live.cluster.verify(deep=True).ok


def test_an_append_is_looked_up_again_if_records_were_erased_before_its_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the old metadata the log may have a file that took the name of an erased one."""
    live = Erasable(tmp_path)
    acknowledge, returned = rounds.acknowledge, list[list[int]]()

    def after_an_erasure(*args: Any) -> list[int]:
        if not returned:
            live.erase(KEY).raise_for_failures()
        returned.append(acknowledge(*args))
        return returned[-1]

    monkeypatch.setattr(rounds, "acknowledge", after_an_erasure)
    report = live.driver().append_batches("t", {0: [keyed([(OTHER, "new")], 1)]})
    assert report.rows[0]["outcome"] == "acknowledged"
    assert returned == [[0], []]
    assert live.everywhere() == {**KEPT, report.rows[0]["base_offset"]: (OTHER, "new")}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_reader_with_old_metadata_takes_no_late_append_for_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The append took the name of an erased file, and its writer has ended before it noticed."""
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap, fill=False)
    late = live.driver()
    late.append_batches("t", {0: [keyed([(OTHER, "1")], 1)]}).raise_for_failures()
    old: list[Any] = []

    def append_and_erase() -> None:
        live.put((KEY, SECRET), (OTHER, "acknowledged"))
        old.append(live.driver().image)
        live.erase(KEY, now=True).raise_for_failures()

    look_at_end = append_module.look_at_end

    def dying(*args: Any, **options: Any) -> Any:
        if old:
            raise KeyboardInterrupt
        return look_at_end(*args, **options)

    faults.once(append_and_erase, "create", "commit", of="/t-", ending=".parquet")
    monkeypatch.setattr(append_module, "look_at_end", dying)
    with pytest.raises(KeyboardInterrupt):
        late.append_batches("t", {0: [keyed([(OTHER, f"late-{i}") for i in range(count)], 1)]})
    ports = ports_of(live.driver())
    (fetched,) = fetch_many(
        ports.metadata, ports.storage, ports.clock, ports.memory, {("t", 0): 0}, known=old[0], timeout_s=5
    )
    assert isinstance(fetched, Done)
    got = fetched.value.records.to_pylist()
    assert [row["value"].decode() for row in got] == ["1", "acknowledged"]


@pytest.mark.parametrize("end", [3, 99])
def test_a_file_of_a_removal_that_never_was_stops_neither_appends_nor_readers(tmp_path: Path, end: int) -> None:
    live = Erasable(tmp_path)
    leader = live.replicas().leader
    leader.store.create(leader.path(DataName(2, end, 1, 7)), b"of lost metadata")
    live.driver().append_batches("t", {0: [keyed([(OTHER, "4")], 1)]}).raise_for_failures()
    assert live.driver().fetch("t", 0, 6).records.num_rows == 1
    ports = ports_of(live.driver())
    (seen,) = look(ports.metadata, ports.storage, ports.memory, "t")[1]
    assert seen.leader.log.log_end == 7
    live.erase(KEY)
    live.driver().append_batches("t", {0: [keyed([(OTHER, "5")], 1)]}).raise_for_failures()


def test_an_upload_in_flight_of_a_record_appended_after_the_search_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment begins below the end of the search, and has the key only in a later record."""
    segments = {"segment_bytes": "1000000", "segment_ms": "60000", "local_retention_bytes": "-1"}
    live = Tiered(tmp_path, tier=False, fill=False, **segments)
    for row in [(KEY, SECRET), (OTHER, "1"), (OTHER, "2")]:
        live.put(row)
    commit = DeltaTopicTable.commit
    stalled: list[Callable[[], Any]] = []

    def stall(*args: Any, **options: Any) -> Any:
        stalled.append(lambda: commit(*args, **options))
        raise KeyboardInterrupt

    def append_and_stall() -> None:
        live.put((KEY, "again"))
        live.clock.sleep(120)
        live.put((OTHER, "2"))
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTopicTable, "commit", stall)
            with pytest.raises(KeyboardInterrupt):
                live.driver().tier("t")

    during(monkeypatch, erasing._Erasing, "clean_remotely", append_and_stall)
    live.erase(KEY, now=True).raise_for_failures()
    stalled[0]()
    listed = live.remote_log().of_partition(0)
    assert any(one.base_offset < 3 < one.next_offset for one in listed)
    assert all((live.remote / live.table().folder / one.path).exists() for one in listed)
    assert live.cluster.verify(deep=True).ok


def test_an_append_after_the_search_is_no_late_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge gives it a file that begins below the end of the search."""
    live = Erasable(tmp_path, fill=False, segment_bytes="1000000", segment_ms="60000")
    for row in [(KEY, SECRET), (OTHER, "1"), (OTHER, "2")]:
        live.put(row)

    def append_and_merge() -> None:
        live.put((KEY, "again"))
        live.clock.sleep(120)
        live.put((OTHER, "2"))
        live.cluster.merge("t").raise_for_failures()

    during(monkeypatch, erasing._Erasing, "look_everywhere", append_and_merge)
    assert live.erase(KEY, now=True).whole
    merged = [one.name for one in live.replicas().leader.list().data if one.name.merged]
    assert any(name.base_offset < 3 < name.least_end for name in merged)
