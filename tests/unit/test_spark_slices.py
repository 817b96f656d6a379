"""The division of work into Spark tasks: pure, without a JVM."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stratalog.engine.spark.runner import pack, run_counted, slice_count
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore


@pytest.mark.parametrize(
    ("items", "cores", "slices"),
    [(1, 2, 2), (8, 2, 2), (17, 2, 3), (64, 2, 8), (1000, 2, 8), (100, 16, 16), (0, 4, 4)],
)
def test_small_work_is_one_task_per_core_and_large_work_is_a_few(items: int, cores: int, slices: int) -> None:
    assert slice_count(items, cores) == slices


def test_slices_are_of_about_equal_weight_and_the_heaviest_come_first() -> None:
    assert pack([1, 9, 2, 8, 5], 2, lambda weight: weight) == [[9, 2, 1], [8, 5]]


def test_no_slice_is_empty() -> None:
    assert pack(["a"], 4, lambda _: 1) == [["a"]]
    assert pack([], 4, lambda _: 1) == []


class Reading:
    """Work that reads some names of a store."""

    def __init__(self, store: Store, names: Iterable[str]) -> None:
        self.store = store
        self.names = list(names)

    def stores_used(self) -> list[Store]:
        return [self.store]


def read_all(work: Reading) -> int:
    try:
        return sum(len(work.store.read(name)) for name in work.names)
    except FileNotFoundError as error:
        raise RetriableError("not there") from error


def test_a_slice_runs_to_its_end_and_counts_what_it_asked_of_its_stores() -> None:
    store = MemoryStore()
    store.create("a", b"12345")
    works = [Reading(store, ["a"]), Reading(store, ["missing"]), Reading(store, ["a", "a"])]
    outcomes, counts = run_counted(read_all, works)
    assert {outcome.item: outcome for outcome in outcomes}.keys() == set(works)
    values = sorted(outcome.value for outcome in outcomes if isinstance(outcome, Done))
    assert values == [5, 10]
    assert [outcome.item for outcome in outcomes if isinstance(outcome, Failed)] == [works[1]]
    assert (counts.creates, counts.reads, counts.read_bytes) == (0, 4, 15)
