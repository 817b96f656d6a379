"""A driver's cached state of the engine's own topics: its producer, whose threads append together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from stratalog.engine.driver.state_cache import OwnAppend, OwnProducer, ReadState, StateCache
from stratalog.partitions.errors import OutcomeUnknownError, StorageError, StratalogError
from tests.unit.harness import batch


class Appends:
    """Makes appends, the first of which waits until it is released."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.made: list[list[str]] = []
        self.began, self.go_on = threading.Event(), threading.Event()
        self.error = error

    def __call__(self, together: Sequence[OwnAppend]) -> None:
        self.made.append([f"{one.topic}-{one.partition}" for one in together])
        number = len(self.made)
        self.began.set()
        assert self.go_on.wait(10)
        if self.error is not None and number == 2:
            raise self.error
        for index, one in enumerate(together):
            if one.partition == 9:
                one.error = StorageError("disk 9 is full")
            else:
                one.base_offset = 10 * number + index


def append(topic: str, partition: int) -> OwnAppend:
    return OwnAppend(topic, partition, batch(["x"]))


def outcomes(make: Appends, *later: OwnAppend) -> list[int | BaseException]:
    """One append begins; the others come while it is running. Returns their outcomes."""
    producer = OwnProducer()
    with ThreadPoolExecutor(len(later) + 1) as pool:

        def start(one: OwnAppend) -> Future[int]:
            return pool.submit(producer.append, one, make)

        futures = [start(append("t", 0))]
        assert make.began.wait(10)
        for count, one in enumerate(later, 1):
            futures.append(start(one))
            while producer._appends.waiting < count:
                pass
        make.go_on.set()
    return [future.exception() or future.result() for future in futures]


def test_lines_that_arrive_during_an_append_are_appended_together() -> None:
    """One append at a time: the previous append has ended."""
    make = Appends()
    assert outcomes(make, append("t", 1), append("t", 0), append("t", 1)) == [10, 20, 21, 22]
    assert make.made == [["t-0"], ["t-1", "t-0", "t-1"]]


def test_topics_are_not_mixed() -> None:
    make = Appends()
    assert outcomes(make, append("t", 1), append("u", 0), append("t", 2)) == [10, 20, 30, 21]
    assert make.made == [["t-0"], ["t-1", "t-2"], ["u-0"]]


def test_each_has_its_own_error() -> None:
    first, good, bad = outcomes(Appends(), append("t", 1), append("t", 9))
    assert (first, good) == (10, 20)
    assert isinstance(bad, StorageError)


@pytest.mark.parametrize(
    ("error", "others"), [(StorageError("no metadata"), StorageError), (KeyboardInterrupt(), OutcomeUnknownError)]
)
def test_an_append_that_fails_as_a_whole_fails_for_all(error: BaseException, others: type[StratalogError]) -> None:
    """An interrupted append may have been made: the others get this error, and do not append again."""
    make = Appends(error)
    first, *rest = outcomes(make, append("t", 1), append("t", 2))
    assert first == 10
    assert len(make.made) == 2
    assert {type(found) for found in rest} == {type(error), others}


def test_the_states_of_the_latest_partitions_are_kept() -> None:
    cache = StateCache()
    for partition in range(300):
        cache.put("t", partition, ReadState(partition, 1))
    assert cache.get("t", 0) is None
    assert cache.get("t", 299) == ReadState(299, 1)
