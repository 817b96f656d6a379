"""Stored schedules are hints, which may be torn, lost, or foreign."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.driver.stored_schedule import SchedulePlace, load_stored, save_stored
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.paths import MAINTENANCE, SCHEDULES
from stratalog.partitions.store.memory import MemoryStore
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, fence, unfence

LINE = b'[1,{"a":[[0,[1,5]]]}]'


def place(of: str = SCHEDULES[0], key: ClusterKey | None = None) -> SchedulePlace:
    return SchedulePlace(MemoryStore("memory://b1", ManualClock()), "d" * 32, "a" * 32, of, key)


@pytest.mark.parametrize("of", SCHEDULES)
def test_a_stored_schedule_is_read_as_written_and_never_overwritten(of: str) -> None:
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
    """With a cluster key, the tag covers the place."""
    key = ClusterKey("c" * 22, [b"k" * 32])
    tiering, maintenance, *_ = (place(of, key) for of in SCHEDULES)
    tiering.create(1, LINE)
    maintenance.store.create(maintenance.path(1), tiering.store.read(tiering.path(1)))
    assert maintenance.read(1) == b""
    assert tiering.read(1) == LINE


# ----------------------------------------------------------------------------- copies


def saved(live: LiveCluster, line: bytes, *, once: bool = False) -> None:
    ports = ports_of(live.driver())
    image = ports.metadata.image()
    stored = load_stored(ports.storage, image, MAINTENANCE)
    assert save_stored(ports.storage, image, MAINTENANCE, stored, lambda _: line, once=once) is None


def loaded(live: LiveCluster) -> bytes:
    ports = ports_of(live.driver())
    return load_stored(ports.storage, ports.metadata.image(), MAINTENANCE).line


def holders(live: LiveCluster) -> list[int]:
    """The brokers with a copy of the newest version, keyed by its name."""
    names = {
        broker: max(
            (stored.name[-29:] for stored in store.list("") if stored.name.endswith(".schedule")), default=""
        )
        for broker, store in live.cluster.stores.items()
    }
    return [broker for broker, name in names.items() if name and name == max(names.values())]


def test_copies_are_on_as_many_brokers_as_replicas_of_the_offsets(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=4)
    saved(live, b"1")
    assert holders(live) == [1, 2, 3]
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "2"})
    saved(live, b"2")
    assert holders(live) == [1, 2]
    saved(live, b"3", once=True)
    assert holders(live) == [1]
    assert loaded(live) == b"3"


def test_the_newest_copy_counts_when_brokers_leave_and_come_back(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=4, voters=(4,))
    saved(live, b"1")
    fence(live, 1)
    assert loaded(live) == b"1", "others hold it"
    saved(live, b"2")
    assert holders(live) == [2, 3, 4]
    unfence(live, 1)
    assert loaded(live) == b"2", "broker 1 holds an old one"
    saved(live, b"3")
    assert holders(live) == [1, 2, 3]


def test_if_the_first_brokers_hold_none_the_others_are_asked(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=4, voters=(4,))
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "1"})
    fence(live, 1, 2)
    saved(live, b"1")
    unfence(live, 1, 2)
    assert loaded(live) == b"1"


def test_a_torn_copy_is_skipped(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=2)
    saved(live, b"1")
    saved(live, b"2")
    store = live.store(1)
    newest = max(stored.name for stored in store.list("") if stored.name.endswith(".schedule"))
    store.delete([newest])
    store.create(newest, b"torn")
    assert loaded(live) == b"2", "broker 2 holds it whole"


def test_two_drivers_put_their_changes_on_top_of_each_other(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    ports = ports_of(live.driver())
    image = ports.metadata.image()
    both = [load_stored(ports.storage, image, MAINTENANCE) for _ in range(2)]
    for number, stored in enumerate(both):
        assert (
            save_stored(ports.storage, image, MAINTENANCE, stored, lambda line, n=number: line + b"%d" % n) is None
        )
    assert loaded(live) == b"01"
