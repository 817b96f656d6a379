"""The threads of fetches: a hanging fetch takes no threads from others, and abandoned fetches do not begin
(KIP-405, "Thread Pools")."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from stratalog.engine.driver.fetching import LOCAL_THREADS, REMOTE_THREADS, Fetching, Remote
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import StoreTimeoutError
from stratalog.partitions.runner import Done, Failed, Outcome

PATIENCE_S = 30
"""The time limit of a test that would hang; no passing test waits for it."""
HANGING, WELL = 1, 2
"""Leaders."""

Key = tuple[str, int]


class Fetches:
    """Fetches that hang until they are released, and others that do not."""

    def __init__(self) -> None:
        self.fetching = Fetching()
        self.clock = ManualClock()
        self.let_go = threading.Event()
        self.begun: list[Key] = []
        self.held = threading.Semaphore(0)
        """Released once by each hanging fetch."""

    def run(
        self, items: Sequence[Key], leader: int = WELL, *, hang: bool = False, remote: bool = False
    ) -> Iterator[Outcome[Key, str]]:
        def work(item: Key) -> str:
            self.begun.append(item)
            if hang:
                self.held.release()
                assert self.let_go.wait(PATIENCE_S)
            return "records"

        def begin(item: Key) -> str | Remote[str]:
            return Remote(lambda: work(item)) if remote else work(item)

        deadline_s = self.clock.monotonic_s() + PATIENCE_S
        return self.fetching.run(begin, items, lambda item: leader, self.clock, deadline_s, PATIENCE_S)

    def hang(self, items: Sequence[Key], threads: int, *, remote: bool = False) -> Iterator[Outcome[Key, str]]:
        """Let all fetches of these leaders hang in all their threads."""
        outcomes = self.run(items, HANGING, hang=True, remote=remote)
        for _ in range(threads):
            assert self.held.acquire(timeout=PATIENCE_S)
        return outcomes

    def give_up(self) -> None:
        """Let the timeout of all fetches pass."""
        self.clock.advance_ms(PATIENCE_S * 1000)


@pytest.fixture
def fetches() -> Iterator[Fetches]:
    made = Fetches()
    yield made
    made.let_go.set()


def some(topic: str, many: int) -> list[Key]:
    return [(topic, partition) for partition in range(many)]


def test_fetches_begin_with_the_call(fetches: Fetches) -> None:
    """A caller that works on something else before it reads the outcomes has not lost that time."""
    outcomes = fetches.hang(some("t", 2), 2)
    fetches.let_go.set()
    assert sorted(fetches.begun) == [("t", 0), ("t", 1)]
    assert {outcome.item for outcome in outcomes if isinstance(outcome, Done)} == {("t", 0), ("t", 1)}


def test_a_leader_that_hangs_leaves_half_of_the_threads_to_the_others(fetches: Fetches) -> None:
    fetches.hang(some("hung", 2 * LOCAL_THREADS), LOCAL_THREADS // 2)
    outcomes = list(fetches.run(some("t", 2 * LOCAL_THREADS)))
    assert [outcome for outcome in outcomes if isinstance(outcome, Failed)] == []
    assert len([topic for topic, _ in fetches.begun if topic == "hung"]) == LOCAL_THREADS // 2


@pytest.mark.parametrize(("threads", "remote"), [(LOCAL_THREADS // 2, False), (REMOTE_THREADS, True)])
def test_work_that_no_caller_waits_for_is_not_begun(fetches: Fetches, threads: int, remote: bool) -> None:
    """Such work is not begun even if no caller has read the outcomes."""
    fetches.hang(some("hung", 3 * threads), threads, remote=remote)
    fetches.give_up()
    fetches.let_go.set()
    assert all(isinstance(outcome, Done) for outcome in fetches.run(some("t", threads), HANGING, remote=remote))
    assert len([topic for topic, _ in fetches.begun if topic == "hung"]) == threads


def test_fetches_that_a_caller_has_no_more_use_for_are_not_begun(fetches: Fetches) -> None:
    """A tail that is stopped closes its iterator after the first outcome, while another leader hangs."""
    few = LOCAL_THREADS // 2
    items = [*some("t", 1), *some("hung", 2 * few)]

    def work(item: Key) -> str:
        fetches.begun.append(item)
        if item[0] == "hung":
            fetches.held.release()
            assert fetches.let_go.wait(PATIENCE_S)
        return "records"

    deadline_s = fetches.clock.monotonic_s() + PATIENCE_S
    leaders = {"t": WELL, "hung": HANGING}
    outcomes = fetches.fetching.run(
        work, items, lambda item: leaders[item[0]], fetches.clock, deadline_s, PATIENCE_S
    )
    for _ in range(few):
        assert fetches.held.acquire(timeout=PATIENCE_S)
    assert next(outcomes).item == ("t", 0)
    outcomes.close()
    assert not any(fetches.fetching._local._waiting.values())
    fetches.let_go.set()
    assert list(fetches.run(some("u", 1), HANGING)) == [Done(("u", 0), "records")]
    assert len([topic for topic, _ in fetches.begun if topic == "hung"]) == few


def test_fetches_that_were_given_up_leave_the_queue(fetches: Fetches) -> None:
    """The queue stays empty, however often fetches are tried while a leader hangs."""
    outcomes = fetches.hang(some("t", LOCAL_THREADS), LOCAL_THREADS // 2)
    for _ in range(3):
        fetches.give_up()
        errors = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
        assert len(errors) == LOCAL_THREADS
        assert all(isinstance(error, StoreTimeoutError) for error in errors)
        assert not any(fetches.fetching._local._waiting.values())
        outcomes = fetches.run(some("t", LOCAL_THREADS), HANGING)
