"""Replica selectors (KIP-392, "Public Interfaces"): what they are given, what they answer, what may be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cluster_file import load_cluster_file
from engine.config_def import Scope
from engine.reading.client import VARIABLE, client_rack
from engine.reading.replica_selector import (
    KEY,
    ClientMetadata,
    CurrentSelector,
    LeaderSelector,
    RackAwareReplicaSelector,
    Replicas,
    ReplicaSelector,
    ReplicaView,
    load_selector,
    select_replica,
)
from engine.settings import check_config
from partitions.errors import InvalidConfigError

TP = ("t", 0)
KAFKAS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
HERE = __name__


def view(broker: int, rack: str | None, end: int = 10, behind_ms: int = 0) -> ReplicaView:
    return ReplicaView(broker, rack, f"memory://b{broker}", end, 0, behind_ms)


LEADER = view(1, "a")


def rack_aware(rack: str | None, *followers: ReplicaView, leader: ReplicaView = LEADER) -> int:
    selected = RackAwareReplicaSelector().select(TP, ClientMetadata(rack), Replicas(leader, (leader, *followers)))
    assert selected is not None
    return selected.broker


# ---------------------------------------------------------------------------- those that ship


def test_without_a_selector_readers_read_from_the_leader() -> None:
    """KIP-392, "Finding the preferred follower": "If no selector is provided (the default), then the consumer will
    follow the current model of fetching only from the leader"."""
    selector = load_selector("", {})
    assert isinstance(selector, LeaderSelector)
    assert selector.select(TP, ClientMetadata("b"), Replicas(LEADER, (LEADER, view(2, "b")))) == LEADER


def test_rack_aware_takes_a_replica_in_the_readers_rack() -> None:
    """KIP-392, "Broker API": "exact matching on the rackId from replicas"."""
    assert rack_aware("b", view(2, "b"), view(3, "c")) == 2
    assert rack_aware("c", view(2, "b"), view(3, "c")) == 3
    assert rack_aware("B", view(2, "b")) == 1, "a rack of another name"


@pytest.mark.parametrize("rack", ["nowhere", "", None])
def test_rack_aware_otherwise_takes_the_leader(rack: str | None) -> None:
    """KIP-392, "Broker API": "otherwise return the current leader"."""
    assert rack_aware(rack, view(2, "b"), view(3, None)) == 1


def test_rack_aware_takes_the_leader_in_the_readers_rack_before_its_followers() -> None:
    assert rack_aware("a", view(2, "a", end=10)) == 1


@pytest.mark.parametrize(
    ("two", "three", "selected"),
    [
        ((9, 0), (10, 5000), 3),
        ((10, 0), (9, 0), 2),
        ((9, 100), (9, 200), 2),
        ((9, 200), (9, 100), 3),
        ((9, 100), (9, 100), 3),
    ],
)
def test_rack_aware_takes_the_most_caught_up(two: tuple[int, int], three: tuple[int, int], selected: int) -> None:
    """The greatest log end, then the one that was caught up last, then the greatest broker: always the same."""
    followers = view(2, "b", *two), view(3, "b", *three)
    assert rack_aware("b", *followers) == rack_aware("b", *reversed(followers)) == selected


# ------------------------------------------------------------------------------ those of others


class Told(ReplicaSelector):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.configs: Mapping[str, str] | None = None
        self.closed = 0

    def configure(self, configs: Mapping[str, str]) -> None:
        assert self.configs is None
        self.configs = configs

    def select(self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed += 1


class Bare:
    """No subclass, and yet all that it takes."""

    def configure(self, configs: Mapping[str, str]) -> None:
        pass

    def select(self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas) -> ReplicaView:
        return partition.replicas[-1]

    def close(self) -> None:
        pass


class Refuses(Told):
    def configure(self, configs: Mapping[str, str]) -> None:
        raise KeyError("my.key")


class Fails(Told):
    def select(self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas) -> None:
        raise ZeroDivisionError("by my racks")


class Strange(Bare):
    def select(self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas) -> ReplicaView:
        return view(9, "z")


class Unfinished(ReplicaSelector):
    """Without ``select``."""


def select(selector: ReplicaSelector) -> ReplicaView:
    return select_replica(selector, TP, ClientMetadata(), Replicas(LEADER, (LEADER, view(2, "b"))))


def test_kafkas_names_and_those_of_python_classes() -> None:
    assert isinstance(load_selector(KAFKAS, {}), RackAwareReplicaSelector)
    assert isinstance(load_selector(f"{RackAwareReplicaSelector.__module__}.RackAwareReplicaSelector", {}), object)
    assert select(load_selector(f"{HERE}.Bare", {})).broker == 2


def test_a_selector_is_configured_with_what_is_set_on_the_cluster() -> None:
    """KIP-392, "Broker API": ``configure(Map<String, ?> configs)``."""
    selector = load_selector(f"{HERE}.Told", {"segment.bytes": "7"})
    assert isinstance(selector, Told)
    assert selector.configs == {"segment.bytes": "7"}


def test_a_selector_that_selects_none_leaves_it_to_the_leader() -> None:
    """KIP-392, "Broker API": "Note that this is only a recommendation"."""
    assert select(load_selector(f"{HERE}.Told", {})) == LEADER


def test_a_selector_stays_until_the_configs_change_and_is_closed_then() -> None:
    """KIP-392, "Broker API": "Optional shutdown hook"."""
    current, configs = CurrentSelector(), {KEY: f"{HERE}.Told"}
    first = current.of(configs)
    assert current.of(dict(configs)) is first
    assert isinstance(first, Told)
    assert first.closed == 0
    second = current.of({**configs, "segment.bytes": "7"})
    assert second is not first
    assert first.closed == 1
    assert isinstance(current.of({}), LeaderSelector)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "org.apache.kafka.common.replica.RackAwareSelector",
            f"there is no such class .*; did you mean {KAFKAS}?",
        ),
        ("no.such.Selector", "there is no such class .ModuleNotFoundError: No module named 'no'"),
        (f"{HERE}.Nobody", "there is no such class .AttributeError"),
        (f"{HERE}.KAFKAS", "it is no replica selector; let it be a subclass of engine.reading"),
        ("pathlib.Path", "it is no replica selector"),
        (f"{HERE}.Unfinished", "it cannot be configured: TypeError: .*abstract"),
        (f"{HERE}.Refuses", "it cannot be configured: KeyError: 'my.key'"),
    ],
)
def test_what_is_no_selector_is_one_clear_error(name: str, message: str) -> None:
    """Nobody reads from the leader by mistake, across all racks, for want of a class."""
    with pytest.raises(InvalidConfigError, match=f"{KEY} = {name}: {message}"):
        load_selector(name, {})


def test_a_selector_that_raises_is_one_clear_error() -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"{HERE}.Fails: of t-0 it selects nothing: ZeroDivisionError: by"
    ):
        select(Fails())


def test_a_selector_that_selects_what_it_was_not_given_is_one_clear_error() -> None:
    with pytest.raises(InvalidConfigError, match=rf"{HERE}.Strange: of t-0 it selects .*none of the replicas"):
        select(Strange())


def test_the_config_takes_names_of_classes() -> None:
    """Whether there is such a class is found by the driver that reads, which has it or has not."""
    for name in ("", KAFKAS, "my_racks.Cheapest"):
        assert check_config(Scope.CLUSTER, KEY, name, "cluster") == name
    for name in ("Cheapest", "my-racks.Cheapest", "my racks", "."):
        with pytest.raises(InvalidConfigError, match="it takes the full name of a class, or nothing"):
            check_config(Scope.CLUSTER, KEY, name, "cluster")


# ------------------------------------------------------------------------------- where readers are


def test_where_a_reader_is_says_the_call_then_spark_then_the_environment_then_the_cluster_file(
    tmp_path: Path,
) -> None:
    """KIP-392, "Consumer API": the consumer has a rack, too; by default it has none."""
    path = tmp_path / "cluster.toml"
    path.write_text('[cluster]\nid = "c"\nvoters = [1]\nclient_rack = "d"\n[[brokers]]\nid = 1\nlog_dir = "b1"\n')
    file = load_cluster_file(path)
    environ = {VARIABLE: "c"}
    assert client_rack("a", "b", environ, file) == "a"
    assert client_rack(None, "b", environ, file) == "b"
    assert client_rack(None, None, environ, file) == "c"
    assert client_rack(None, None, {}, file) == "d"
    assert client_rack(None, None, {}, replace(file, client_rack=None)) is None


def test_the_empty_rack_is_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[cluster]\nid = "c"\nvoters = [1]\nclient_rack = "d"\n[[brokers]]\nid = 1\nlog_dir = "b1"\n')
    assert client_rack("", "b", {}, load_cluster_file(path)) is None
