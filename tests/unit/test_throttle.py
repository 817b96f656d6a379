"""The throttle of copies: a token bucket on the injected clock."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError


def seconds(throttle: Throttle, clock: ManualClock, *spent: int) -> float:
    """The seconds for spending that amount."""
    before = clock.monotonic_s()
    for size_bytes in spent:
        throttle.spend(size_bytes)
    return clock.monotonic_s() - before


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_the_first_second_is_free_and_what_follows_waits(clock: ManualClock) -> None:
    throttle = Throttle(100, clock)
    assert seconds(throttle, clock, 60, 40) == 0
    assert seconds(throttle, clock, 50) == pytest.approx(0.5)
    assert seconds(throttle, clock, 100) == pytest.approx(1)


def test_a_file_larger_than_the_bucket_waits_for_all_of_it(clock: ManualClock) -> None:
    assert seconds(Throttle(100, clock), clock, 1000) == pytest.approx(9)


def test_an_idle_bucket_does_not_save_more_than_a_second(clock: ManualClock) -> None:
    throttle = Throttle(100, clock)
    clock.advance_ms(3_600_000)
    assert seconds(throttle, clock, 200) == pytest.approx(1)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30), st.integers(1, 10_000))
def test_on_average_no_more_than_the_rate_is_spent(sizes: list[int], rate: int) -> None:
    clock = ManualClock()
    took = seconds(Throttle(rate, clock), clock, *sizes)
    slack = 0.001 * len(sizes)  # the manual clock counts milliseconds
    assert sum(sizes) <= rate * (took + 1 + slack)
    assert took <= max(0, sum(sizes) / rate - 1) + slack


def test_a_borrower_waits_for_earlier_borrowers_and_not_for_its_own_loan(clock: ManualClock) -> None:
    """Every copy gets a share, however small the rate is."""
    throttle = Throttle(100, clock)
    began = clock.monotonic_s()
    assert throttle.borrow(1000, within_s=0)
    assert clock.monotonic_s() == began
    assert throttle.borrow(100, within_s=9.1)
    assert clock.monotonic_s() - began == pytest.approx(9)
    assert seconds(throttle, clock, 100) == pytest.approx(2)


def test_a_request_that_would_wait_for_too_long_is_refused_at_no_cost(clock: ManualClock) -> None:
    throttle = Throttle(100, clock)
    assert throttle.borrow(1000, within_s=0)
    began = clock.monotonic_s()
    assert not throttle.borrow(500, within_s=8.9)
    assert clock.monotonic_s() == began
    assert throttle.borrow(1, within_s=9.1)


class StoppedClock(ManualClock):
    """A clock that does not advance, and records sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_threads_share_one_bucket() -> None:
    clock = StoppedClock()
    throttle = Throttle(1000, clock)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(throttle.spend, [500] * 8))
    assert sorted(clock.slept) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])


def test_processes_get_a_share_each_and_start_over(clock: ManualClock) -> None:
    throttle = Throttle(1000, clock)
    assert throttle.shared_by(1) is throttle
    share = pickle.loads(pickle.dumps(throttle.shared_by(4)))
    assert share.bytes_per_s == 250
    share.spend(250)
    share.spend(250)  # the share's own clock has waited, not this one
    assert clock.monotonic_s() == ManualClock().monotonic_s()


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_would_never_end_is_refused(rate: float, clock: ManualClock) -> None:
    with pytest.raises(InvalidCallError, match="give more than 0"):
        Throttle(rate, clock)
