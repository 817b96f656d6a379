"""The prototype of docs/shared-tail.md: its numbering, its reads, its requests."""

from __future__ import annotations

from bench.cost_table import Requests
from bench.shared_tail import Brokers, batches, of_tail, parts, raced, shared_run


def test_one_create_numbers_the_runs_of_all_drivers() -> None:
    """A later driver appends the same bytes under the next number, after the first one's."""
    brokers = Brokers()
    one, other = brokers.driver(), brokers.driver()
    assert one.append({0: (3, b"aaa"), 1: (1, b"b")}) == {0: 0, 1: 0}
    assert other.append({1: (2, b"cc")}) == {1: 1}
    assert one.append({0: (1, b"d"), 1: (1, b"e")}) == {0: 3, 1: 3}
    assert list(brokers.driver().tail(1)) == [b"b", b"cc", b"e"]
    assert [store.read("shared/00000000000000000002.tail") for store in brokers.stores[1:]] == [
        brokers.stores[0].read("shared/00000000000000000002.tail")
    ] * 2


def test_a_split_makes_a_file_of_each_partition_on_every_broker() -> None:
    brokers = Brokers()
    driver = brokers.driver()
    driver.append({0: (1, b"a"), 1: (1, b"b")})
    driver.append({0: (1, b"c"), 1: (1, b"d")})
    driver.split(2)
    names = [[stored.name for stored in store.list("0")] for store in brokers.stores]
    assert names == [["0/00000000000000000002.parquet"]] * 3
    assert brokers.stores[2].read("0/00000000000000000002.parquet") == b"ac"


def test_the_requests_of_a_run_do_not_depend_on_its_partitions() -> None:
    assert shared_run(1) == shared_run(1000)
    brokers = Brokers()
    brokers.driver().append(batches(3))
    assert brokers.counted(lambda: brokers.driver().append(batches(3))) == shared_run(1) + Requests(2, 1)


def test_races_readers_splits_and_large_objects_are_counted_in_requests() -> None:
    assert [raced(drivers) for drivers in (1, 2, 3)] == [1.0, 1.5, 2.0]
    read, split = of_tail(16, 2)
    assert (read.puts, read.gets) == (1, 32)
    assert split.puts == 1 + 2 * 4
    assert (parts(1, 3).puts, parts(8, 3).puts, parts(64, 1).puts) == (0, 4, 5)
