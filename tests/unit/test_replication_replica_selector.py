"""Replica selectors (KIP-392, "Public Interfaces"): their arguments, their answers, their errors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.reading.client import VARIABLE, client_rack
from stratalog.engine.replication.replica_selector import (
    GROUP,
    KEY,
    ClientMetadata,
    CurrentSelector,
    LeaderSelector,
    MakeSelector,
    OfferedSelectors,
    RackAwareReplicaSelector,
    Replicas,
    ReplicaSelector,
    ReplicaView,
    select_replica,
)
from stratalog.partitions.errors import InvalidConfigError
from tests.unit.cluster_harness import LiveCluster

TP = ("t", 0)
KAFKAS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


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
    selector = OfferedSelectors().make("", {})
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
    """The order is always the same: the greatest log end, then the replica that was caught up last, then the
    greatest broker id.
    """
    followers = view(2, "b", *two), view(3, "b", *three)
    assert rack_aware("b", *followers) == rack_aware("b", *reversed(followers)) == selected


# ------------------------------------------------------------------------------ those that are offered


class Told(ReplicaSelector):
    """Records its arguments."""

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
    """A selector that is not a subclass, but has all methods."""

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


class Unclosable(Told):
    def close(self) -> None:
        raise ZeroDivisionError


class Strange(Bare):
    def select(self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas) -> ReplicaView:
        return view(9, "z")


class Unfinished(ReplicaSelector):
    """A selector without ``select``."""


def select(selector: ReplicaSelector) -> ReplicaView:
    return select_replica(selector, TP, ClientMetadata(), Replicas(LEADER, (LEADER, view(2, "b"))))


def offered(name: str, make: MakeSelector) -> ReplicaSelector:
    return OfferedSelectors({name: make}).make(name, {"segment.bytes": "7"})


def test_the_config_picks_by_name_among_those_that_ship_and_those_that_are_offered() -> None:
    assert isinstance(OfferedSelectors().make(KAFKAS, {}), RackAwareReplicaSelector)
    assert isinstance(OfferedSelectors({KAFKAS: Bare}).make(KAFKAS, {}), RackAwareReplicaSelector)
    assert select(offered("bare", Bare)).broker == 2


def test_a_selector_is_configured_with_what_is_set_on_the_cluster() -> None:
    """KIP-392, "Broker API": ``configure(Map<String, ?> configs)``."""
    selector = offered("told", Told)
    assert isinstance(selector, Told)
    assert selector.configs == {"segment.bytes": "7"}


def test_a_selector_that_selects_none_leaves_it_to_the_leader() -> None:
    """KIP-392, "Broker API": "Note that this is only a recommendation"."""
    assert select(offered("told", Told)) == LEADER


def test_a_selector_stays_until_the_configs_change_and_is_closed_then() -> None:
    """KIP-392, "Broker API": "Optional shutdown hook"."""
    current, configs = CurrentSelector(OfferedSelectors({"told": Told})), {KEY: "told"}
    first = current.of(configs)
    assert current.of(dict(configs)) is first
    assert isinstance(first, Told)
    assert first.closed == 0
    second = current.of({**configs, "segment.bytes": "7"})
    assert second is not first
    assert first.closed == 1
    assert isinstance(current.of({}), LeaderSelector)


EVIL = """
import pathlib
pathlib.Path(__file__).with_name("was_here").touch()
raise SystemExit("by the attacker")
"""


@pytest.mark.parametrize(
    "name", ["b2.evil.X", "evil.X", "lib2to3.__main__.x", "no.such.Selector", "", "a\x1b[2J", "x" * 9999]
)
def test_no_name_of_the_config_is_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The config may have been written to a voter's root, or come from a restored backup. A reader in the folder
    of the cluster, or in the root of a broker, reads from the leader, and says so.
    """
    root = tmp_path / "b2"
    root.mkdir()
    (root / "evil.py").write_text(EVIL)
    package = root / "evil-1.0.dist-info"
    package.mkdir()
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nevil.X = evil:X\nno.such.Selector = evil:X\n")
    (package / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    for folder in (tmp_path, root):
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend("")
        before = set(sys.modules)
        assert isinstance(CurrentSelector().of({KEY: name}), LeaderSelector)
        assert {module for module in set(sys.modules) - before if "evil" in module or "lib2to3" in module} == set()
    assert not list(root.glob("was_here"))
    assert len(caplog.messages) == (2 if name else 0)
    assert all(message.isprintable() and len(message) < 1000 for message in caplog.messages)


def test_an_installed_package_offers_selectors_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams and jobs open clusters themselves, so no selectors can be passed to them."""
    (tmp_path / "my_racks.py").write_text(
        "from stratalog.engine.replication.replica_selector import LeaderSelector\n"
        "class Cheapest(LeaderSelector): pass\n"
    )
    package = tmp_path / "my_racks-1.0.dist-info"
    package.mkdir()
    (package / "entry_points.txt").write_text(f"[{GROUP}]\ncheapest = my_racks:Cheapest\nbroken = no_racks:No\n")
    (package / "METADATA").write_text("Name: my-racks\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    here = OfferedSelectors({"told": Told})
    assert type(here.make("cheapest", {})).__name__ == "Cheapest"
    with pytest.raises(InvalidConfigError, match="broken: it cannot be configured: ModuleNotFoundError"):
        here.make("broken", {})
    with pytest.raises(
        InvalidConfigError, match=r"'cheapst': .* did you mean 'cheapest'\?; it offers broken, cheapest,"
    ):
        here.check("cheapst")
    for name in ("", KAFKAS, "told", "cheapest"):
        here.check(name)


def test_a_name_that_nobody_offers_is_refused_where_it_would_be_set(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    for name in (KAFKAS.replace("Rack", "Rock"), "my_racks.Cheapest"):
        with (
            live.unchanged(),
            pytest.raises(InvalidConfigError, match="this process offers no selector of that name"),
        ):
            live.cluster.topics.alter_configs(None, {KEY: name})
    for wrong in ("my racks", "x" * 256, "a\n"):
        with live.unchanged(), pytest.raises(InvalidConfigError, match=KEY):
            live.cluster.topics.alter_configs(None, {KEY: wrong})
    live.select_by(**{"my_racks.Cheapest": Told})
    live.cluster.topics.alter_configs(None, {KEY: KAFKAS})
    live.cluster.topics.alter_configs(None, {KEY: None})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (str, "it is not a replica selector; make it a subclass of stratalog.engine.replication"),
        (lambda: None, "it is not a replica selector"),
        (Unfinished, "it cannot be configured: TypeError: .*abstract"),
        (Refuses, "it cannot be configured: KeyError: 'my.key'"),
    ],
)
def test_an_entry_point_that_is_no_selector_is_one_clear_error(make: MakeSelector, message: str) -> None:
    """The process lacks the selector; the config is not wrong."""
    with pytest.raises(InvalidConfigError, match=f"{KEY} = mine: {message}"):
        offered("mine", make)


def test_a_selector_that_cannot_be_closed_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    current = CurrentSelector(OfferedSelectors({"mine": Unclosable}))
    assert isinstance(current.of({KEY: "mine"}), Unclosable)
    assert isinstance(current.of({KEY: KAFKAS}), LeaderSelector | RackAwareReplicaSelector)
    assert "'Unclosable' cannot be closed: ZeroDivisionError" in caplog.text


def test_a_selector_that_raises_is_one_clear_error() -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"{__name__}.Fails: for t-0 it cannot select: ZeroDivisionError: by"
    ):
        select(Fails())


def test_a_selector_that_selects_what_it_was_not_given_is_one_clear_error() -> None:
    with pytest.raises(InvalidConfigError, match=rf"{__name__}.Strange: for t-0 it selects .*not among"):
        select(Strange())


# ------------------------------------------------------------------------------- where readers are


def test_the_rack_of_a_reader_comes_from_the_call_then_spark_then_the_environment_then_the_cluster_file(
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
