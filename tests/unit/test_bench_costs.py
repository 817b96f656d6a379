"""The cost of a cluster: requests, bytes and machines times a list of prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.cost_table import (
    Measured,
    Operation,
    Requests,
    Shape,
    break_even_line,
    break_even_mib,
    copies_per_gib,
    diskless,
    in_buckets,
    kafka,
    objects_per_gib,
    on_disks,
    per_gib,
    read_prices,
)

PRICES = read_prices()
NOTHING = Operation(Requests(), Requests())
MEASURED = Measured(
    {1.0: Operation(Requests(2, 5), Requests(8, 6)), 8.0: Operation(Requests(2, 5), Requests(12, 4))},
    merged=Requests(1, 1),
    replicated=Operation(Requests(8, 10), Requests(3, 3)),
    checked=NOTHING,
    segment=Requests(5, 5),
)
ONE = Shape(partitions=1, mib_s=1 / 60)


def test_requests_cost_by_their_kind() -> None:
    assert Requests(puts=1000, gets=1000).dollars(PRICES.bucket) == pytest.approx(0.0054)
    assert Operation(Requests(2, 5), Requests(8, 6)).of(10) == Requests(82, 65)


def test_a_gib_of_small_appends_costs_more() -> None:
    small, large = (per_gib(PRICES, MEASURED.appends[mib], mib, 100) for mib in (1.0, 8.0))
    assert small == pytest.approx(1024 * (8.02 * 5e-6 + 6.05 * 4e-7))
    assert large < small / 5


def test_the_break_even_size_follows_from_the_price_of_a_gib() -> None:
    """The cost of an append is constant within a size class, so at twice the price per GiB an append needs half
    the size.
    """
    small = MEASURED.appends[1.0].of(100).dollars(PRICES.bucket) / 100
    assert break_even_mib(PRICES, MEASURED, small * 1024 * 2) == pytest.approx(0.5)
    assert break_even_mib(PRICES, MEASURED, small * 1024 / 1.2) == pytest.approx(
        1.2 * MEASURED.appends[8.0].of(100).dollars(PRICES.bucket) / 100 / small
    )
    assert break_even_mib(PRICES, MEASURED, small) is None
    assert copies_per_gib(PRICES) == pytest.approx(8 / 3 * 1.0737 * PRICES.network.cross_zone_gb)
    assert objects_per_gib(PRICES) == pytest.approx(256 * (5e-6 + 3 * 4e-7))
    assert break_even_line("a", 0.1, 0.51, 64).cells == ("a", "0.1000", "0.5")
    assert break_even_line("a", 0.1, None, 64).cells == ("a", "0.1000", "above 64")


@pytest.mark.parametrize(("mib", "puts"), [(0.1, 8), (1, 8), (1.1, 12), (8, 12), (9, 24), (24, 36)])
def test_an_append_is_priced_as_the_next_larger_one_or_as_several(mib: float, puts: float) -> None:
    assert MEASURED.append(mib).partition.puts == puts


def test_a_day_in_buckets_costs_its_requests_storage_and_machine() -> None:
    """One append of 1 MiB and one round per minute; segments of 128 MiB; no traffic between zones."""
    found = in_buckets(PRICES, ONE, MEASURED)
    puts = 1440 * (2 + 8 + 1) + 1440 * (8 + 3) + 11.25 * 5
    gets = 1440 * (5 + 6 + 1) + 1440 * (10 + 3) + 11.25 * 5
    assert found.requests == pytest.approx(Requests(puts, gets).dollars(PRICES.bucket))
    assert (found.network, found.machines) == (0, 24 * PRICES.machine.hour)
    assert found.total == found.requests + found.storage + found.machines


def test_each_system_pays_only_for_the_resources_that_it_uses() -> None:
    shape = Shape(partitions=100, mib_s=20)
    ours, disks, broker, less = (
        in_buckets(PRICES, shape, MEASURED),
        on_disks(PRICES, shape, MEASURED),
        kafka(PRICES, shape),
        diskless(PRICES, shape),
    )
    assert ours.network == less.network == 0
    assert broker.network == pytest.approx(disks.network * 4 / 3)
    assert disks.storage == broker.storage > less.storage
    assert less.requests < ours.requests
    twice = replace(MEASURED, replicated=Operation(Requests(8, 10), Requests(6, 6)))
    assert in_buckets(PRICES, shape, twice).requests > ours.requests
