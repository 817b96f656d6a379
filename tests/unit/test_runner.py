"""Runs independent work items: an error of stratalog is the outcome of its item, a bug is raised."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from stratalog.partitions.errors import BrokerUnreachableError, CorruptSegmentError, InvalidCallError
from stratalog.partitions.runner import Done, Failed, Runner, SerialRunner, ThreadRunner, attempt, values

RUNNERS = [
    pytest.param(SerialRunner(), id="serial"),
    pytest.param(ThreadRunner(1), id="one thread"),
    pytest.param(ThreadRunner(4), id="four threads"),
]


def double(item: int) -> int:
    """Doubles the item; odd items fail."""
    if item % 2:
        raise BrokerUnreachableError(f"broker {item}")
    return item * 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_item_has_one_outcome_and_a_failure_stops_no_other(runner: Runner) -> None:
    outcomes = sorted(runner.run(double, range(6)), key=lambda outcome: outcome.item)
    assert [outcome for outcome in outcomes if isinstance(outcome, Done)] == [Done(0, 0), Done(2, 4), Done(4, 8)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    assert [(outcome.item, str(outcome.error)) for outcome in failed] == [
        (1, "broker 1"),
        (3, "broker 3"),
        (5, "broker 5"),
    ]


@pytest.mark.parametrize("runner", RUNNERS)
def test_no_items_have_no_outcomes(runner: Runner) -> None:
    assert list(runner.run(double, [])) == []


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("items", [[1], [1, 2, 3]])
def test_anything_else_is_a_bug_and_is_raised(runner: Runner, items: list[int]) -> None:
    def broken(_: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(runner.run(broken, items))


def test_a_serial_run_is_lazy_and_in_order() -> None:
    begun: list[int] = []
    outcomes = SerialRunner().run(lambda item: begun.append(item), iter([3, 1, 2]))
    assert next(outcomes).item == 3
    assert begun == [3]
    assert [outcome.item for outcome in outcomes] == [1, 2]


def test_threads_run_at_once() -> None:
    """Each piece waits for the other: in one thread this would not end."""
    together = threading.Barrier(2, timeout=10)
    outcomes = ThreadRunner(2).run(lambda _: together.wait(), [0, 1])
    assert sorted(values(outcomes)) == [0, 1]


def test_items_may_run_others_on_the_same_runner_however_busy_it_is() -> None:
    runner = ThreadRunner(2)

    def nested(depth: int) -> int:
        return sum(values(runner.run(nested, [depth - 1] * 4))) if depth else 1

    assert sum(values(runner.run(nested, [3] * 4))) == 4**4


def test_a_runner_travels_without_its_threads() -> None:
    runner = ThreadRunner(2)
    values(runner.run(str, [1, 2]))
    assert values(pickle.loads(pickle.dumps(runner)).run(str, [3])) == ["3"]


def test_after_a_bug_what_has_not_begun_is_not_begun() -> None:
    begun: list[int] = []

    def broken(item: int) -> None:
        begun.append(item)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(ThreadRunner(2).run(broken, range(1_000)))
    assert len(begun) < 20


def test_an_attempt_is_the_outcome_of_one_item() -> None:
    assert attempt(double, 2) == Done(2, 4)
    assert isinstance(attempt(double, 1), Failed)


def test_values_raises_the_first_failure_once_everything_has_ended() -> None:
    ended: list[int] = []

    def outcomes() -> object:
        yield Done(0, "a")
        yield Failed(1, CorruptSegmentError("first"))
        yield Failed(2, InvalidCallError("second"))
        ended.append(3)

    with pytest.raises(CorruptSegmentError, match="first"):
        values(outcomes())  # type: ignore[arg-type]
    assert ended == [3]


def test_values_of_a_run_without_failures() -> None:
    assert values(SerialRunner().run(double, [0, 2])) == [0, 4]


def test_items_that_end_quickly_run_without_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads begin only when an item is slow; that item is the last one for which the others wait."""
    monkeypatch.setattr("stratalog.partitions.runner.QUICK_S", 0.02)
    runner = ThreadRunner(3)
    here = threading.current_thread()

    def quick(item: int) -> threading.Thread:
        return threading.current_thread()

    for _ in range(200):  # some threads may be slow on a busy machine
        found = [done.value for done in runner.run(quick, range(3)) if isinstance(done, Done)]
        if found == [here] * 3:
            break
    else:
        pytest.fail("quick items are still given to threads")
    both = threading.Barrier(2, timeout=60)

    def slow(item: int) -> int:
        if item == 0:
            time.sleep(0.03)
        else:
            both.wait()
        return item

    assert sorted(done.value for done in runner.run(slow, range(3)) if isinstance(done, Done)) == [0, 1, 2]
