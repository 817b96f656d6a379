"""Objects that a Spark task leaves in its Python worker do not slow down later garbage collections."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from stratalog.engine.spark import worker_garbage
from stratalog.engine.spark.worker_garbage import in_worker


@in_worker
def rows(batches: Iterator[int]) -> Iterator[int]:
    yield from batches


@in_worker
def write(batches: Iterator[int]) -> list[int]:
    return list(batches)


class Ring:
    ring: Ring


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker that has run no task."""
    monkeypatch.setattr(worker_garbage, "_spared", False)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("task", [lambda: list(rows(iter([1, 2]))), lambda: write(iter([1, 2]))])
def test_collections_after_the_first_task_look_at_none_of_the_modules(task: Callable[[], list[int]]) -> None:
    assert task() == [1, 2]
    assert len(gc.get_objects()) < 1000 < gc.get_freeze_count()


@pytest.mark.usefixtures("fresh")
def test_garbage_of_a_later_task_is_collected() -> None:
    write(iter([]))
    frozen = gc.get_freeze_count()
    ring = Ring()
    ring.ring = ring
    gone = weakref.ref(ring)
    del ring
    write(iter([]))
    assert gc.get_freeze_count() <= frozen
    gc.collect()
    assert gone() is None
