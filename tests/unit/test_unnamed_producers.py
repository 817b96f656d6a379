"""Unnamed appends use few producer ids (protocol section 2, Append step 2)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.driver.memory import UnnamedProducers
from stratalog.partitions.identity import NewId
from stratalog.partitions.store import Store
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.faulty_store import FaultyStore


@pytest.fixture
def new_id() -> NewId:
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):032x}"


def test_an_id_that_came_back_continues_with_the_next_sequence(new_id: NewId) -> None:
    producers = UnnamedProducers()
    first = producers.take(new_id)
    producers.give_back(first)
    second = producers.take(new_id)
    assert (second.producer_id, second.sequence) == (first.producer_id, first.sequence + 1)
    assert second.epoch == first.epoch, "nobody is fenced"


def test_an_id_belongs_to_one_append_at_a_time(new_id: NewId) -> None:
    """An id that is not returned, because its outcome is unknown, is never used by another append."""
    producers = UnnamedProducers()
    first, second = producers.take(new_id), producers.take(new_id)
    producers.give_back(second)
    third, fourth = producers.take(new_id), producers.take(new_id)
    assert third.producer_id == second.producer_id
    assert len({first.producer_id, second.producer_id, fourth.producer_id}) == 3


def test_the_id_that_came_back_last_is_taken_first(new_id: NewId) -> None:
    """The ids that only a rare crowd needs then expire."""
    producers = UnnamedProducers()
    crowd = [producers.take(new_id) for _ in range(3)]
    for one in crowd:
        producers.give_back(one)
    taken = [producers.take(new_id) for _ in range(3)]
    assert [one.producer_id for one in taken] == [one.producer_id for one in reversed(crowd)]


def test_after_a_fork_only_one_process_continues_under_an_id(
    new_id: NewId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other process's append would be taken for a retry of this one, and its records would not be
    appended.
    """
    producers = UnnamedProducers()
    before = producers.take(new_id)
    producers.give_back(before)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert producers.take(new_id).producer_id != before.producer_id


def test_an_append_that_names_no_producer_is_no_duplicate_of_its_own_echo(tmp_path: Path) -> None:
    """The answer to a create is lost, and its repetition finds the file. With a name, the file may be from an
    earlier call.
    """
    echoes = 0

    def echoing(uri: str, store: Store) -> Store:
        wrapped = FaultyStore(store)

        def hook(what: str, name: str, call: Callable[[], Any]) -> Any:
            nonlocal echoes
            done = call()
            if what == "commit" and "/0." in name and done and echoes < 1:
                echoes += 1
                return False
            return done

        wrapped.hook = hook
        return wrapped

    live = LiveCluster(tmp_path, through=echoing)
    live.topic()
    assert rows_of(live.append(["a"]), "outcome", "base_offset") == [("acknowledged", 0)]
    assert echoes == 1
    leader = live.replica(live.leader())
    (producer,) = leader.producers(leader.log())
    assert rows_of(live.append(["b"]), "outcome", "base_offset") == [("acknowledged", 1)]
    again = live.append(["b"], producer=producer, sequence=1)
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 1)]
    assert live.read() == {0: ["a", "b"]}
