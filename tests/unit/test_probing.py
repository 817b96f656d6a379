"""Many concurrent requests without waiting for hanging ones (``stratalog.partitions.probing``)."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator

import pytest

from stratalog.partitions.errors import BrokerUnreachableError, StoreTimeoutError
from stratalog.partitions.probing import Prober, SerialProber, ThreadProber, Wait
from stratalog.partitions.runner import Done, Failed


def all_but(*hanging: int) -> Wait:
    """In each probe, wait until only this number of answers is missing, like a deadline that passes at that
    moment.
    """
    left = iter(hanging)

    def wait(answered: threading.Condition, missing: Callable[[], int], deadline_s: float) -> None:
        count = next(left)
        answered.wait_for(lambda: missing() == count)

    return wait


@pytest.fixture
def server() -> Iterator[threading.Event]:
    """Set once the server is back; requests hang until then."""
    back = threading.Event()
    yield back
    back.set()


@pytest.mark.parametrize("prober", [SerialProber(), ThreadProber()], ids=["serial", "threads"])
def test_outcomes_are_in_the_order_of_the_items(prober: Prober) -> None:
    def question(number: int) -> int:
        if number % 2:
            raise BrokerUnreachableError(f"{number} is odd")
        return number * number

    zero, one, two = prober.probe(question, [0, 1, 2], 60)
    assert (zero, two) == (Done(0, 0), Done(2, 4))
    assert isinstance(one, Failed)
    assert str(one.error) == "1 is odd"
    assert prober.probe(question, [], 60) == []


@pytest.mark.parametrize("deadline_s", [2**63 / 1000, float("inf")])
def test_a_deadline_may_be_longer_than_a_thread_can_wait(deadline_s: float) -> None:
    """The first is Kafka's longest time, as broker.session.timeout.ms."""
    assert ThreadProber().probe(abs, [-1], deadline_s) == [Done(-1, 1)]


@pytest.mark.parametrize("prober", [SerialProber(), ThreadProber()], ids=["serial", "threads"])
def test_a_bug_is_raised(prober: Prober) -> None:
    def question(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        prober.probe(question, [1, 0], 60)


@pytest.mark.parametrize("prober", [SerialProber(), ThreadProber()], ids=["serial", "threads"])
def test_an_exception_that_ends_a_thread_is_raised_without_waiting_for_the_deadline(prober: Prober) -> None:
    def question(number: int) -> int:
        raise SystemExit(number)

    with pytest.raises(SystemExit):
        prober.probe(question, [1], 20)


def test_a_hanging_root_has_timed_out_and_the_others_have_answered(server: threading.Event) -> None:
    def question(number: int) -> int:
        if number == 2:
            server.wait()
        return number

    one, two, three = ThreadProber(all_but(1)).probe(question, [1, 2, 3], 9)
    assert (one, three) == (Done(1, 1), Done(3, 3))
    assert isinstance(two, Failed)
    assert isinstance(two.error, StoreTimeoutError)
    assert str(two.error) == "no answer within 9 s"


def test_a_root_that_hangs_since_an_earlier_probe_is_not_asked_again_until_it_is_back(
    server: threading.Event,
) -> None:
    """A stream that probes before every batch leaves one thread for a dead root, not one per batch."""
    asked: list[int] = []
    threads: list[threading.Thread] = []

    def question(number: int) -> int:
        asked.append(number)
        if number == 2 and not server.is_set():
            threads.append(threading.current_thread())
            server.wait()
        return number

    prober = ThreadProber(all_but(1, 0, 0))
    prober.probe(question, [1, 2], 9)
    one, two = prober.probe(question, [1, 2], 9)
    assert one == Done(1, 1)
    assert isinstance(two, Failed)
    assert sorted(asked) == [1, 1, 2]
    server.set()
    threads[0].join()
    assert prober.probe(question, [1, 2], 9) == [Done(1, 1), Done(2, 2)]


def test_a_pickled_prober_asks_as_this_one_and_knows_of_none_that_hang(server: threading.Event) -> None:
    """The prober is sent to executors with the work whose time it limits."""
    prober = ThreadProber()
    copy = pickle.loads(pickle.dumps(prober))
    assert isinstance(copy, ThreadProber)
    assert copy.probe(str, [1, 2], 60) == [Done(1, "1"), Done(2, "2")]


def test_one_thread_asks_those_that_answer_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.partitions.probing.QUICK_S", 0.05)
    prober = ThreadProber()
    for _ in range(20):  # the first answers may be slow on a busy machine
        outcomes = prober.probe(lambda item: threading.current_thread(), [1, 2, 3], 60.0)
        if len({done.value for done in outcomes if isinstance(done, Done)}) == 1:
            break
    else:
        pytest.fail("each item still has a thread of its own")


def test_the_others_do_not_wait_for_one_item_that_hangs_after_quick_answers(
    server: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    prober = ThreadProber()
    monkeypatch.setattr(prober, "_quick", True)

    def ask(item: int) -> int:
        if item == 1:
            server.wait()
        return item

    hanging, *others = prober.probe(ask, [1, 2, 3], 0.5)
    assert isinstance(hanging, Failed)
    assert others == [Done(2, 2), Done(3, 3)]
    assert list(prober._abandoned) == [1]
