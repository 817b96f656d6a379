"""A fetch and a tail of records that have one damaged copy: another copy serves them, and the damage is
reported.
"""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stratalog.engine.reading.fetch import Fetched
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.partitions.errors import CorruptSegmentError, RemoteObjectMissingError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.nearest_harness import racked, unaware
from tests.unit.stream_harness import first_tasks, values_of
from tests.unit.tail_harness import texts
from tests.unit.tampering import Spot, remote_spot, spot

PAGES = 40
"""A byte of the first pages of a small file."""


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """``t``: three appends with three copies; 1 leads."""
    made = LiveCluster(tmp_path)
    made.topic()
    made.fill("abc")
    made.cluster.replicate().raise_for_failures()
    return made


def values(fetched: Fetched) -> str:
    return "".join(value.decode() for value in fetched.records.column("value").to_pylist())


def footer_of(found: Spot) -> int:
    data = found.read()
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little") // 2


def value_of(found: Spot) -> int:
    """A byte of the page of the values."""
    return int(pq.read_metadata(io.BytesIO(found.read())).row_group(0).column(4).data_page_offset) + 40


def damage_note(broker: int, offset: int) -> str:
    return rf"^t-0: offsets \[{offset}, {offset + 1}\) cannot be read: memory://b{broker}/.*; run heal"


@pytest.mark.parametrize("what", ["page", "footer"])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_records_that_are_damaged_on_the_leader_come_from_a_follower(
    live: LiveCluster, offset: int, what: str
) -> None:
    bad = spot(live, live.leader(), offset)
    bad.flip(PAGES if what == "page" else footer_of(bad))
    fetched = live.driver().fetch("t", 0, offset)
    assert (values(fetched)[:1], fetched.broker) == ("abc"[offset], 2)
    (note,) = fetched.damage
    with pytest.raises(CorruptSegmentError, match=damage_note(1, offset)):
        raise CorruptSegmentError(note)


def test_intact_records_come_from_the_usual_replica(live: LiveCluster) -> None:
    """The usual replica serves records up to the damage, and after it again; no other replica is listed."""
    spot(live, 1, 1).flip(PAGES)
    driver = live.driver()
    found = []
    for offset in range(3):
        fetched = driver.fetch("t", 0, offset, max_bytes=1)
        found.append((values(fetched), fetched.broker, len(fetched.damage)))
    assert found == [("a", 1, 0), ("b", 2, 1), ("c", 1, 0)]


def test_a_damaged_copy_in_the_readers_rack_is_reported(tmp_path: Path, faults: Faults) -> None:
    near = racked(tmp_path, faults)
    spot(near, 2, 0).flip(PAGES)
    fetched = near.driver().fetch("t", 0, 0, client_rack="b")
    assert (values(fetched), fetched.broker) == ("abcdef", 1)
    assert "memory://b2/" in fetched.damage[0]


def test_a_follower_serves_only_what_it_knows_to_be_committed(tmp_path: Path, faults: Faults) -> None:
    """The follower's copy is intact, but may have other records there than the log will have."""
    near = racked(tmp_path, faults)
    unaware(near, 2)
    replica = near.replica(3)
    replica.store.delete([replica.path(mark) for mark in replica.list().watermarks if mark.offset == 7])
    spot(near, 1, 6).flip(PAGES)
    with pytest.raises(CorruptSegmentError, match=r"^t-0: offsets \[6, 7\) cannot be read: memory://b1/"):
        near.driver().fetch("t", 0, 6)


def test_the_remote_tier_serves_what_is_damaged_on_every_broker(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    for broker in (1, 2, 3):
        spot(live, broker, 0).flip(PAGES)
    fetched = live.driver().fetch("t", 0, 0, max_bytes=1)
    assert (values(fetched), fetched.remote, len(fetched.damage)) == ("a", True, 3)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["page", "object"])
def test_a_follower_serves_what_is_damaged_in_the_remote_tier(tmp_path: Path, what: str) -> None:
    """A broker can serve them if the leader has not dropped them yet; if no copy is intact, the error has all
    details.
    """
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    kept = live.data(2)
    for _ in range(2):
        live.cluster.retain("t").raise_for_failures()
    bad = remote_spot(live, 0)
    bad.flip(PAGES) if what == "page" else bad.remove()
    kind = CorruptSegmentError if what == "page" else RemoteObjectMissingError
    with pytest.raises(kind, match=r"^t-0: .*; run heal"):
        live.driver().fetch("t", 0, 0)
    follower = live.replica(2)
    follower.store.delete([stored.name for _, stored in follower.list().local_starts])
    for name, data in kept.items():
        follower.store.create(follower.path(name), data)
    fetched = live.driver().fetch("t", 0, 0, max_bytes=1)
    assert (values(fetched), fetched.broker, len(fetched.damage)) == ("a", 2, 1)


@pytest.mark.slow
def test_if_no_copy_is_good_the_error_names_each(live: LiveCluster) -> None:
    for broker in (1, 2, 3):
        spot(live, broker, 1).flip(PAGES)
    with pytest.raises(CorruptSegmentError, match=damage_note(1, 1)) as raised:
        live.driver().fetch("t", 0, 1)
    assert all(f"memory://b{broker}/" in str(raised.value) for broker in (1, 2, 3))
    assert "\n" not in str(raised.value)


def test_a_tail_continues_and_reports_the_damage_once(live: LiveCluster) -> None:
    spot(live, 1, 0).flip(PAGES)
    tail = live.driver().tail("t", start=0, follow=False, max_bytes=1)
    assert texts(tail) == ["a", "b", "c"]
    (note,) = tail.report().notes
    assert note.startswith("t-0: offsets [0, 1) cannot be read: memory://b1/")


@pytest.mark.parametrize("what", ["page", "footer"])
def test_offsets_of_groups_are_read_from_another_replica(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.cluster.groups.commit("g", {("t", 0): 0}).raise_for_failures()
    replica = live.replica(live.leader(OFFSETS_TOPIC), OFFSETS_TOPIC)
    bad = Spot(replica.store, replica.log().chain[0].file.object.name)
    bad.flip(value_of(bad) if what == "page" else footer_of(bad))
    assert live.driver().groups.committed("g")["t", 0].offset == 0
    assert "heal" in caplog.text
    for follower in live.followers(OFFSETS_TOPIC):
        live.wipe(follower)
    with pytest.raises(CorruptSegmentError, match=replica.store.uri):
        live.driver().groups.committed("g")


def test_a_stream_shows_whose_records_are_damaged(live: LiveCluster) -> None:
    tasks = first_tasks(live)
    bad = spot(live, 1, 1)
    bad.flip(value_of(bad))
    with pytest.raises(CorruptSegmentError, match=damage_note(1, 1)):
        values_of(tasks)


@pytest.mark.nightly
def test_no_flipped_bit_of_a_copy_is_ever_read(tmp_path: Path) -> None:
    """500 positions of a segment of the leader: the records are returned unchanged."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.append([f"value {number}" for number in range(200)]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    file, dice = spot(live, 1, 0), random.Random(11)
    good = file.read()
    wanted = values(live.cluster.fetch("t", 0, 0))
    found = 0
    for _ in range(500):
        bad = bytearray(good)
        bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
        file.replace(bytes(bad))
        fetched = live.driver().fetch("t", 0, 0)
        assert values(fetched) == wanted
        found += len(fetched.damage)
    assert found > 400
