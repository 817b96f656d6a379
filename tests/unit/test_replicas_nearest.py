"""The nearest replica (KIP-392): which replicas may serve a reader, and up to which offset."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replicas.nearest import Chosen, SeenLeader, nearest
from stratalog.engine.replication.replica_selector import (
    KEY,
    ClientMetadata,
    Replicas,
    ReplicaSelector,
    ReplicaView,
)
from stratalog.partitions.errors import InvalidConfigError, StorageError
from stratalog.partitions.paths import LocalStartName
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.nearest_harness import RACKS, out_of_sync, racked, unaware


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    return racked(tmp_path, faults)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, for tests that change nothing."""
    return racked(tmp_path_factory.mktemp("shared"), Faults())


def seen(live: LiveCluster, broker: int, view: PartitionView | None = None) -> SeenLeader:
    """The listed leader, which is that broker."""
    ports = ports_of(live.cluster)
    replicas = live.replicas() if view is None else ports.storage.replicas(view)
    return SeenLeader(ports.metadata.image(), replicas, live.log(broker), replicas.leader.footer, tiered=False)


def chosen(live: LiveCluster, rack: str | None, offset: int = 0) -> Chosen:
    """The choice of ``live``'s driver, which has just read the metadata."""
    return with_ports(nearest, ports_of(live.cluster))(seen(live, live.leader()), ClientMetadata(rack), offset)


def serves(live: LiveCluster, rack: str | None, offset: int = 0) -> tuple[int, int]:
    """The broker, and the end of the records that it serves."""
    found = chosen(live, rack, offset)
    assert found.is_leader == (found.replica.broker_id == live.leader())
    return found.replica.broker_id, found.high_watermark


@pytest.mark.parametrize(("rack", "broker"), RACKS.items())
def test_a_reader_reads_from_the_replica_in_its_rack(shared: LiveCluster, rack: str, broker: int) -> None:
    """KIP-392, "Broker API"."""
    assert serves(shared, rack) == (broker, 6)
    assert chosen(shared, rack).rack == rack


@pytest.mark.parametrize("rack", ["d", "nowhere", "", None])
def test_if_no_replica_is_in_its_rack_it_reads_from_the_leader(shared: LiveCluster, rack: str | None) -> None:
    """KIP-392, "Broker API": "otherwise return the current leader". Broker 4 is in rack d and has no replica."""
    assert serves(shared, rack) == (1, 6)


def test_by_default_everybody_reads_from_the_leader_and_nobody_else_is_asked(
    live: LiveCluster, faults: Faults
) -> None:
    """KIP-392, "Broker API": the default of replica.selector.class is null."""
    live.cluster.topics.alter_configs(None, {KEY: None})
    asked: Counter[str] = Counter()
    faults.before = lambda uri, what, name: asked.update([uri])
    leader = seen(live, 1)
    asked.clear()
    assert with_ports(nearest, ports_of(live.cluster))(leader, ClientMetadata("b"), 0).is_leader
    assert not asked


@pytest.mark.parametrize(("rack", "asked"), [("a", set()), ("nowhere", set()), (None, set()), ("b", {2})])
def test_only_replicas_that_could_be_chosen_are_listed(
    live: LiveCluster, faults: Faults, rack: str | None, asked: set[int]
) -> None:
    asked_of: set[str] = set()
    leader = seen(live, 1)
    faults.before = lambda uri, what, name: asked_of.add(uri)
    with_ports(nearest, ports_of(live.cluster))(leader, ClientMetadata(rack), 0)
    assert asked_of == {f"memory://b{broker}" for broker in asked}


def test_a_fetch_at_the_high_watermark_asks_no_follower(live: LiveCluster, faults: Faults) -> None:
    asked_of: set[str] = set()
    leader = seen(live, 1)
    faults.before = lambda uri, what, name: asked_of.add(uri)
    assert with_ports(nearest, ports_of(live.cluster))(leader, ClientMetadata("b"), 6).is_leader
    assert not asked_of


# --------------------------------------------------------------------------------- who is not chosen


def test_a_fenced_replica_is_not_chosen(live: LiveCluster) -> None:
    live.cluster.brokers.fence(2).raise_for_failures()
    assert serves(live, "b") == (1, 6)


def test_a_replica_that_cannot_be_reached_is_not_chosen(live: LiveCluster, faults: Faults) -> None:
    faults.refuse(StorageError("no route to host"), at="memory://b2")
    assert serves(live, "b") == (1, 6)


@pytest.mark.parametrize("link", [3, -1], ids=["in the middle", "at the end"])
def test_a_replica_that_has_lost_a_file_is_not_chosen(live: LiveCluster, link: int) -> None:
    replica = live.replica(2)
    replica.store.delete([replica.log().chain[link].file.object.name])
    assert serves(live, "b") == (1, 6)


def test_the_better_of_two_replicas_in_the_rack_is_chosen(live: LiveCluster, faults: Faults) -> None:
    view = live.replicas().view
    in_b = {3: msgspec.structs.replace(view.brokers[3], rack="b")}
    view = replace(view, brokers={**view.brokers, **in_b})

    def chosen_now() -> int:
        return with_ports(nearest, ports_of(live.cluster))(
            seen(live, 1, view), ClientMetadata("b"), 0
        ).replica.broker_id

    assert chosen_now() == 3

    faults.refuse(StorageError("no route to host"), at="memory://b3")
    assert chosen_now() == 2


def test_a_replica_out_of_the_isr_serves_until_it_has_been_behind_for_too_long(live: LiveCluster) -> None:
    """replica.lag.time.max.ms, counted from the time of the oldest record that the replica lacks."""
    live.cluster.topics.alter_configs(None, {"replica.lag.time.max.ms": "1000"})
    out_of_sync(live, 2)
    assert serves(live, "b") == (2, 6)
    live.clock.advance_ms(1001)
    assert serves(live, "b") == (1, 7)
    assert serves(live, "c") == (3, 7)


def test_a_replica_that_has_dropped_the_offset_is_not_chosen(live: LiveCluster) -> None:
    """KIP-392, "Out of range handling": "the log start offsets are not consistently maintained between the leader
    and followers"."""
    replica = live.replica(2)
    replica.store.create(replica.path(LocalStartName(3)), b"")
    assert serves(live, "b", 2) == (1, 6)
    assert serves(live, "b", 3) == (2, 6)


def test_a_replica_of_another_history_is_not_chosen_beyond_what_it_has_in_common(live: LiveCluster) -> None:
    """After an unclean election, broker 2, which was away, holds a record that the new leader lacks."""
    live.cluster.topics.alter_configs(None, {"replica.lag.time.max.ms": "1000000"})
    live.cluster.brokers.fence([3]).raise_for_failures()
    live.append(["lost"]).raise_for_failures()
    live.cluster.brokers.unfence(3).raise_for_failures()
    live.cluster.brokers.fence([1, 2], force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.append(["kept"]).raise_for_failures()
    assert live.leader() == 3
    live.cluster.brokers.unfence(2).raise_for_failures()
    assert live.log(2).high_watermark == 7, "it does not know better"
    assert serves(live, "b") == (2, 6)
    assert serves(live, "b", 6) == (3, 7)


def test_a_replica_that_knows_a_later_leader_is_not_chosen(live: LiveCluster) -> None:
    """The listed leader has been replaced, so its listing does not show the records that other replicas have by
    now.
    """
    leader = seen(live, 1)
    live.cluster.elect("t", leader=3).raise_for_failures()
    live.append(["g"]).raise_for_failures()
    assert live.log(2).joined_epoch > leader.log.joined_epoch
    assert with_ports(nearest, ports_of(live.cluster))(leader, ClientMetadata("b"), 0).is_leader


# ------------------------------------------------------------------------------------ up to where


def test_a_replica_serves_up_to_its_own_high_watermark(live: LiveCluster) -> None:
    """KIP-392, "Out of range handling": "These records cannot be returned until the high watermark is known to
    have advanced"."""
    unaware(live, 2)
    assert live.log(2).log_end == 7
    assert serves(live, "b") == (2, 6)
    assert serves(live, "b", 6) == (1, 7), "OFFSET_NOT_AVAILABLE there: the leader knows"


def test_a_replica_that_knows_more_than_a_new_leader_serves_no_more_than_it(live: LiveCluster) -> None:
    """Readers see records up to the leader's high watermark, on any replica."""
    unaware(live, 1)
    leader = seen(live, 1)
    assert (leader.log.high_watermark, live.log(2).high_watermark) == (6, 7)
    found = with_ports(nearest, ports_of(live.cluster))(leader, ClientMetadata("b"), 0)
    assert (found.replica.broker_id, found.high_watermark) == (2, 6)


@pytest.mark.parametrize("broker", [2, 3])
def test_a_sync_tells_a_follower_of_the_high_watermark_also_when_there_is_nothing_to_copy(
    live: LiveCluster, broker: int
) -> None:
    """KIP-392, "High watermark propagation": "The leader will respond to a fetch immediately if the follower has a
    stale high watermark"; protocol section 3, step 5."""
    unaware(live, broker)
    before = live.data(broker)
    (row,) = live.cluster.replicate().raise_for_failures().rows
    assert row["copied_files"] == 0
    assert live.data(broker) == before
    assert serves(live, chr(96 + broker)) == (broker, 7)


# ----------------------------------------------------------------------------- selectors of one's own

SEEN: list[tuple[tuple[str, int], ClientMetadata, Replicas]] = []


class Farthest(ReplicaSelector):
    """Selects the greatest broker id; records its arguments."""

    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        SEEN.append((topic_partition, client, partition))
        return max(partition.replicas, key=lambda replica: replica.broker)


class Raises(ReplicaSelector):
    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        raise RuntimeError("no idea")


def test_a_selector_sees_the_reader_and_every_replica_that_could_serve(live: LiveCluster) -> None:
    """KIP-392, "Broker API": it "allows users to provide custom logic"; here it is called for every read, so that
    no reader stays with a replica that has fallen behind (``metadata.max.age.ms`` has no counterpart)."""
    live.select_by(Farthest=Farthest)
    live.cluster.brokers.fence(3).raise_for_failures()
    unaware(live, 2)
    SEEN.clear()
    leader = seen(live, 1)
    client = ClientMetadata(None, "loader", "me", "here")
    assert with_ports(nearest, ports_of(live.cluster))(leader, client, 0).replica.broker_id == 2
    first = ReplicaView(1, "a", "memory://b1", 7, 0, 0)
    ((topic_partition, found, replicas),) = SEEN
    assert (topic_partition, found) == (("t", 0), client)
    assert replicas == Replicas(first, (first, ReplicaView(2, "b", "memory://b2", 7, 0, 0)))


def test_a_selector_that_fails_fails_the_read(live: LiveCluster) -> None:
    live.select_by(Raises=Raises)
    with pytest.raises(InvalidConfigError, match="Raises"):
        chosen(live, "b")


def test_a_reader_who_does_not_offer_the_selector_reads_from_the_leader_and_says_so(
    live: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-392, "Broker API": the recommended replica may not exist."""
    live.select_by(Farthest=Farthest)
    live.selectors = {}
    live.cluster = live.driver()
    for _ in range(2):
        assert serves(live, "b") == (1, 6)
    (message,) = caplog.messages
    assert message.startswith(
        "the leader serves all reads: replica.selector.class = 'Farthest': this process offers no"
    )
