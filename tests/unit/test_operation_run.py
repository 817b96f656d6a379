"""The frame of an operation: its tasks, commits, rows and report (``stratalog.engine.driver.run``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import stratalog
from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.partition_commands import Altered, PartitionAnswer, RefusedPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.partition import BoundedWork, PartitionReplicas
from stratalog.partitions.errors import FencedLeaderEpochError, StorageError
from stratalog.partitions.identity import TopicIdPartition


class CountRow(PartitionRow, frozen=True, kw_only=True):
    count: int | None
    lost: int | msgspec.UnsetType | None = msgspec.UNSET
    why: str | None


def row(partition: int, count: int | None = 0, **others: Any) -> CountRow:
    return CountRow(topic="t", partition=partition, count=count, why=None, **others)


def view(partition: int, topic: str = "t") -> PartitionView:
    return PartitionView(
        **{
            **dict.fromkeys(PartitionView.__dataclass_fields__),
            "topic": topic,
            "topic_id": f"id-{topic}",
            "partition": partition,
        }
    )


def key(partition: int, topic: str = "t") -> TopicIdPartition:
    return TopicIdPartition(f"id-{topic}", partition)


@dataclass
class Seen:
    """Records the calls of progress."""

    calls: list[object] = field(default_factory=list)

    def start(self, operation: str, items: int, unit: str) -> None:
        self.calls.append((operation, items, unit))

    def advance(self, size_bytes: int = 0) -> None:
        self.calls.append(size_bytes)

    def finish(self) -> None:
        self.calls.append("finished")


@dataclass(frozen=True, slots=True)
class CopyWork(BoundedWork):
    """Copy as many files as ``number``; one fails in partition 13."""

    files: int
    done: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Copied:
    files: int
    left: int

    @property
    def moved_bytes(self) -> int:
        return 10 * self.files

    def after(self, before: Copied) -> Copied:
        return replace(self, files=self.files + before.files)


def copy(work: CopyWork) -> Copied:
    there = sum(work.done)
    if work.files == 13 and there:
        raise StorageError("the disk is full")
    now = min(work.files - there, work.files if work.most is None else work.most)
    work.done.append(now)
    return Copied(now, work.files - there - now)


def works(*files: int) -> list[CopyWork]:
    return [
        CopyWork(replicas=PartitionReplicas(view(number), {}), files=count) for number, count in enumerate(files)
    ]


def a_run() -> tuple[OperationRun, Seen]:
    seen = Seen()
    return OperationRun("copy", tasks=LocalTasks(1), progress=seen), seen


def test_the_fields_of_a_row_are_its_columns_but_for_unset_ones() -> None:
    run, _ = a_run()
    run.add([row(0, 1), row(1, 2, lost=None)])
    assert run.report().rows == [
        {"topic": "t", "partition": 0, "count": 1, "why": None},
        {"topic": "t", "partition": 1, "count": 2, "lost": None, "why": None},
    ]
    assert list(run.rows[1]) == ["topic", "partition", "count", "lost", "why"]
    with pytest.raises(AttributeError):
        row(0).partition = 1  # type: ignore[misc]


def test_rows_are_filled_sorted_and_summed_and_null_counts_as_0() -> None:
    run, _ = a_run()
    run.add([row(2, 5), row(0, None)])
    run.fill(map(view, range(3)), lambda of: row(of.partition, 7))
    run.total("count")
    assert [(one["partition"], one["count"]) for one in run.rows] == [(0, None), (1, 7), (2, 5)]
    assert run.totals == {"count": 12}
    run.sort("count", "partition")
    assert [one["partition"] for one in run.rows] == [0, 2, 1]


def test_each_task_advances_progress_and_one_that_fails_is_a_failure() -> None:
    run, seen = a_run()
    (full,) = works(13)
    full.done.append(1)
    found = {
        work.files: copied.files
        for work, copied in run.each(copy, [*works(1, 2), full], size=lambda copied: copied.moved_bytes)
    }
    assert found == {1: 1, 2: 2}
    assert run.failures == [Failure("t-0", "KAFKA_STORAGE_ERROR", "the disk is full")]
    assert seen.calls[0] == ("copy", 3, "partitions")
    assert sorted(cast("list[int]", seen.calls[1:-1])) == [0, 10, 20]
    assert seen.calls[-1] == "finished"


def over_after(turns: int) -> Callable[[], bool]:
    answers = iter([False] * (turns - 1) + [True])
    return lambda: next(answers)


@pytest.mark.parametrize(
    ("turns", "done", "cut_off"),
    [(None, [1, 9, 30], None), (1, [1, 1, 1], 2), (2, [1, 5, 5], 2), (3, [1, 9, 21], 1), (9, [1, 9, 30], None)],
)
def test_work_in_turns_ends_with_its_budget(turns: int | None, done: list[int], cut_off: int | None) -> None:
    run, seen = a_run()
    parts, failed = run.in_turns(copy, works(1, 9, 30), None if turns is None else over_after(turns))
    assert sorted(copied.files for _, copied in parts) == sorted(done)
    assert (failed, run.failures, run.totals.get("cut_off")) == ([], [], cut_off)
    assert sum(found for found in seen.calls if isinstance(found, int)) == 10 * sum(done)


def test_work_that_fails_in_a_later_turn_keeps_what_it_had_done() -> None:
    run, _ = a_run()
    parts, failed = run.in_turns(copy, works(13, 3), lambda: False)
    assert {str(work): copied.files for work, copied in parts} == {"t-0": 1, "t-1": 3}
    assert [str(one.item) for one in failed] == ["t-0"]
    assert (run.failures, run.totals) == ([], {})


@dataclass
class Metadata:
    """Refuses odd partitions."""

    submitted: list[bool] = field(default_factory=list)

    def submit(self, command: Iterable[TopicIdPartition], *, dry_run: bool = False) -> Iterator[PartitionAnswer]:
        self.submitted.append(dry_run)
        for of in command:
            refused = RefusedPartition(*of, FencedLeaderEpochError("another one leads"))
            yield refused if of.partition % 2 else Altered(*of, 1)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_commit_reports_refused_items_as_failures_and_returns_the_others(dry_run: bool) -> None:
    run, metadata = OperationRun("copy", dry_run), Metadata()
    items = {key(number): view(number) for number in range(3)}
    client = cast(MetadataClient, metadata)
    done = run.commit(client, cast(Any, list(items)), items, lambda of: f"; elect for {of}")
    assert list(done) == [key(0), key(2)]
    text = "another one leads; elect for t-1"
    assert run.failures == [Failure("t-1", "FENCED_LEADER_EPOCH", text)]
    assert run.commit(client, cast(Any, []), {}) == {}
    assert metadata.submitted == [dry_run]


def test_a_partition_that_has_failed_or_whose_topic_has_is_not_settled() -> None:
    run, _ = a_run()
    run.fail("t-1", StorageError("it is away"))
    run.fail("u", StorageError("its table is away"))
    run.settle([(view(0), 5), (view(1), 5), (view(0, "u"), 5)])
    assert run.settled == {key(0): 5}


def test_the_failures_and_notes_of_a_called_operation_are_taken_over_once() -> None:
    run, _ = a_run()
    run.notes.append("broker 2 is fenced")
    aside = run.aside()
    aside.fail("t-0", StorageError("it is away"))
    aside.notes += ["broker 2 is fenced", "broker 3 is fenced"]
    assert (aside.operation, run.failures) == ("copy", [])
    run.absorb(aside.report())
    assert run.notes == ["broker 2 is fenced", "broker 3 is fenced"]
    assert run.failures == [Failure("t-0", "KAFKA_STORAGE_ERROR", "it is away")]
    assert not run.report().ok
    assert run.rows == []


def test_the_rows_of_a_called_operation_are_included_on_request() -> None:
    run, _ = a_run()
    aside = run.aside()
    aside.add([row(3, 1)])
    run.absorb(aside.report(), rows=True)
    assert run.rows == [row(3, 1).columns()]


UNTYPED = {
    "engine/upkeep": r"rows(\.append\(| \+= )|Report\(\"?\w+\"?, \[|dict\[str, Value\]\]",
    "engine": r"run\.rows(\.append\(| \+= )",
    "bridges/export": r"run\.rows(\.append\(| \+= )",
}
"""Modules that make rows without a class, keyed by folder, with the reason."""
OF_EVENTS = "history.py"
"""An event has the columns of the topic of events (``EVENT_COLUMNS``)."""


@pytest.mark.parametrize("folder", UNTYPED)
def test_operations_make_their_rows_of_row_classes(folder: str) -> None:
    modules = Path(stratalog.__file__).resolve().parents[1] / folder
    found = [
        f"{module.name}:{number}"
        for module in sorted(modules.rglob("*.py"))
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(UNTYPED[folder], line) and (module.parent.name, module.name) != ("admin", OF_EVENTS)
    ]
    assert found == []
