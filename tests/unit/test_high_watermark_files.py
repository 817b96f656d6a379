"""The purpose of the high-watermark file of each append: each test passes with the file, and shows the failure
without it.

If storage never lost files, a high watermark in the next append would be as safe: each counterexample is a loss of
the newest file, or a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

import stratalog.engine.records.acknowledge
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.watermark import advance_high_watermark, record_high_watermark
from stratalog.partitions.runner import Runner
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of

Advance = Callable[[PartitionReplicas, int, Runner], None]


def by_the_next_append() -> Advance:
    """The high watermark of an append is known on all replicas once the next one is acknowledged."""
    reached = 0

    def advance(replicas: PartitionReplicas, offset: int, copies: Runner) -> None:
        nonlocal reached
        if reached:
            advance_high_watermark(replicas, reached, copies)
        reached = offset

    return advance


def on_the_leader_alone() -> Advance:
    """Followers get it from the next append, or from the next sync."""
    reached = 0

    def advance(replicas: PartitionReplicas, offset: int, copies: Runner) -> None:
        nonlocal reached
        if reached:
            advance_high_watermark(replicas, reached, copies)
        record_high_watermark(replicas.leader, replicas.epoch, offset)
        reached = offset

    return advance


CHEAPER = pytest.mark.parametrize("cheaper", [by_the_next_append, on_the_leader_alone])


@contextmanager
def advancing(advance: Advance | None) -> Iterator[None]:
    """Inside the block, appends advance the high watermark in this way; None means as the protocol says."""
    with patch.object(
        stratalog.engine.records.acknowledge, "advance_high_watermark", advance or advance_high_watermark
    ):
        yield


def filled(folder: Path, advance: Advance | None, copies: int = 3) -> LiveCluster:
    """Three acknowledged appends of one record each; then a driver that knows nothing of them."""
    live = LiveCluster(folder)
    live.topic(copies=copies)
    with advancing(advance):
        live.fill("abc")
    live.cluster = live.driver()
    return live


def lose_newest(live: LiveCluster, broker: int) -> None:
    """The storage of a broker loses its newest data file, and no other."""
    replica = live.replica(broker)
    replica.store.delete([replica.path(replica.log().chain[-1].name)])


def alone(live: LiveCluster) -> int:
    """Fence all but one member of the ISR, which then leads: a clean election. Brokers that answer are
    not fenced.
    """
    (one, *_) = live.followers()
    lose_newest(live, one)
    fence(live, *({1, 2, 3} - {one}))
    assert live.leader() == one
    return one


def test_a_lone_member_that_has_lost_the_newest_file_gives_its_offset_to_nobody(tmp_path: Path) -> None:
    """I1: an acknowledged append is in the log of every later leader, unless storage is lost on all of the ISR."""
    live = filled(tmp_path, None)
    alone(live)
    assert set(codes(live.append("d"))) == {"CORRUPT_MESSAGE"}


@CHEAPER
def test_without_its_own_file_a_lone_member_does_not_know_what_it_has_lost(
    tmp_path: Path, cheaper: Callable[[], Advance]
) -> None:
    """One of three storages has lost one file, and another record replaces an acknowledged record."""
    live = filled(tmp_path, cheaper())
    alone(live)
    assert rows_of(live.append("d"), "outcome", "base_offset") == [("acknowledged", 2)]
    assert live.read() == {0: list("abd")}


def test_a_leader_that_has_lost_the_newest_file_gives_its_offset_to_nobody(tmp_path: Path) -> None:
    """I10, with one replica: the file of the append and that of its high watermark are two names."""
    live = filled(tmp_path, None, copies=1)
    lose_newest(live, live.leader())
    assert set(codes(live.append("d"))) == {"CORRUPT_MESSAGE"}
    assert codes(live.cluster.verify())


def test_without_its_own_file_the_loss_of_an_append_leaves_no_trace(tmp_path: Path) -> None:
    """The folder then has exactly the names that it had before the append, so nothing can distinguish the two
    states.
    """
    live = LiveCluster(tmp_path)
    live.topic(copies=1)
    with advancing(by_the_next_append()):
        live.fill("ab")
        before = set(live.on_brokers())
        live.fill("c")
    added = set(live.on_brokers()) - before
    # The high watermark is that of "b".
    assert sorted(name.rpartition(".")[2] for name in added) == ["hw", "parquet"]
    live.cluster = live.driver()
    lose_newest(live, live.leader())
    assert not codes(live.cluster.verify(deep=True))
    assert rows_of(live.append("d"), "outcome", "base_offset") == [("acknowledged", 2)]


def test_other_drivers_read_an_append_once_it_is_acknowledged(tmp_path: Path) -> None:
    assert filled(tmp_path, None).read() == {0: list("abc")}


def test_without_its_own_file_an_acknowledged_append_is_hidden_until_the_next_one(tmp_path: Path) -> None:
    live = filled(tmp_path, by_the_next_append())
    assert live.read() == {0: list("ab")}


def test_each_replica_serves_an_append_once_it_is_acknowledged(tmp_path: Path) -> None:
    live = filled(tmp_path, None)
    assert {live.log(broker).high_watermark for broker in (1, 2, 3)} == {3}


def test_without_its_own_file_a_follower_is_one_append_behind(tmp_path: Path) -> None:
    live = filled(tmp_path, on_the_leader_alone())
    assert [live.log(broker).high_watermark for broker in (live.leader(), *live.followers())] == [3, 2, 2]
