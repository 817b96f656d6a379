"""Schedules as they are stored: hints, which may be torn, lost, or a stranger's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.driver.stored_schedule import SchedulePlace
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.paths import SCHEDULES
from stratalog.partitions.store.memory import MemoryStore

LINE = b'[1,{"a":[[0,[1,5]]]}]'


def place(of: str = SCHEDULES[0], key: ClusterKey | None = None) -> SchedulePlace:
    return SchedulePlace(MemoryStore("memory://b1", ManualClock()), "d" * 32, "a" * 32, of, key)


@pytest.mark.parametrize("of", SCHEDULES)
def test_what_is_written_is_read(of: str) -> None:
    one = place(of)
    assert one.create(1, LINE)
    assert not one.create(1, b"other")
    assert one.versions() == [1]
    assert one.read(1) == LINE


@given(st.data())
def test_a_torn_or_damaged_one_is_nothing(data: st.DataObject) -> None:
    one = place()
    one.create(1, LINE)
    whole = one.store.read(one.path(1))
    cut = data.draw(st.integers(0, len(whole) - 1))
    one.store.create(one.path(2), whole[:cut])
    assert one.read(2) == b""
    flipped = bytearray(whole)
    flipped[cut] ^= 1
    one.store.create(one.path(3), bytes(flipped))
    assert one.read(3) == b""


def test_one_kind_is_never_taken_for_another() -> None:
    """With a cluster key the tag names the place."""
    key = ClusterKey("c" * 22, [b"k" * 32])
    tiering, maintenance = (place(of, key) for of in SCHEDULES)
    tiering.create(1, LINE)
    maintenance.store.create(maintenance.path(1), tiering.store.read(tiering.path(1)))
    assert maintenance.read(1) == b""
    assert tiering.read(1) == LINE
