"""Scenario files of bootstraps, run end to end on real stores: folders, and an S3 server."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from stratalog.tiering.remote_file import read_remote
from tests.clocks import open_by_clock
from tests.ports import ports_of
from tests.s3_server import S3Endpoint
from tests.unit.harness import batch
from tests.unit.test_upkeep_bootstrap import LAST_TIERED

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.toml"))
BROKERS = (1, 2, 3, 4)  # broker 1 votes
SEAL_MS = 3_600_000


class World:
    """Topic ``t``, one partition on brokers 2, 3 and 4; the first of them leads in the end."""

    def __init__(self, folder: Path, remote: str, s3: S3Endpoint | None) -> None:
        self.folder = folder
        self.clock = ManualClock(SystemClock().now_ms())
        lines = ["[cluster]", 'id = "c"', f'remote = "{remote}"', "voters = [1]"]
        if s3 is not None:
            lines += ["[s3]", f'endpoint_url = "{s3.url}"', f'region = "{s3.region}"']
        else:
            (folder / remote).mkdir()
        for broker in BROKERS:
            lines += ["[[brokers]]", f"id = {broker}", f'log_dir = "b{broker}"']
            (folder / f"b{broker}").mkdir()
        (folder / "cluster.toml").write_text("\n".join(lines))
        self.cluster = with_parts(Cluster, clock=self.clock, opener=open_by_clock).format(folder / "cluster.toml")
        self.cluster.brokers.fence(1).raise_for_failures()
        configs = {"remote.storage.enable": "true", "segment.ms": str(SEAL_MS), "retention.ms": "-1"}
        self.cluster.topics.create(
            "t", partitions=1, replication_factor=3, configs={**configs, "file.delete.delay.ms": "0"}
        )

    def run(self, history: list[str]) -> None:
        """Run the ``history`` of a scenario."""
        for event in history:
            match event.split():
                case ["msg", _, epoch]:
                    while self.view.leader_epoch < epoch_of(epoch):
                        others = [broker for broker in self.view.replicas if broker != self.view.leader]
                        self.cluster.elect("t", leader=others[0]).raise_for_failures()
                    rows = batch([event], self.clock.now_ms() * 1000)
                    self.cluster.append_batches("t", {0: [rows]}).raise_for_failures()
                case ["tier"]:
                    self.clock.advance_ms(2 * SEAL_MS)
                    self.cluster.tier().raise_for_failures()
                case ["drop"]:
                    self.cluster.topics.alter_configs("t", {"local.retention.bytes": "0"})
                    self.cluster.retain().raise_for_failures()
                    self.cluster.topics.alter_configs("t", {"local.retention.bytes": None})
                case _:
                    raise ValueError(event)

    @property
    def view(self) -> Any:
        (view,) = self.cluster.image.views("t")
        return view

    def log(self, broker: int) -> ReplicaLog:
        return ports_of(self.cluster).storage.replicas(self.view).replica(broker).log()

    def wiped(self, broker: int) -> None:
        """Replace the broker's disk by an empty one."""
        store = self.cluster.stores[broker]
        store.delete([stored.name for stored in store.list("")])


def epoch_of(text: str) -> int:
    """The number of the KIP's ``LE-n``."""
    return int(text.removeprefix("LE-")) + 1


def epochs(listed: list[list[Any]]) -> list[tuple[int, int]]:
    return [(epoch_of(epoch), start) for epoch, start in listed]


def check_replica(found: ReplicaLog, expected: Mapping[str, Any]) -> None:
    first, last = expected["log"].split("-")
    assert (found.local_start, found.log_end - 1) == (int(first), int(last))
    assert found.high_watermark == expected["high_watermark"]
    assert [tuple(entry) for entry in found.lineage] == epochs(expected["leader_epochs"])


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "folder":
        return World(tmp_path, "remote", None)
    s3: S3Endpoint = request.getfixturevalue("s3_endpoint")
    return World(tmp_path, f"s3://{s3.bucket}/{tmp_path.name}", s3)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bootstrapped", "as_before"])
@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_a_scenario_comes_out_as_written(world: World, file: Path, way: str) -> None:
    """KIP-1023, "Follower Fetch Scenarios"."""
    scenario = tomllib.loads(file.read_text())
    world.run(scenario["history"])
    ports = ports_of(world.cluster)
    leader, follower = world.view.leader, next(b for b in world.view.replicas if b != world.view.leader)
    check_replica(world.log(leader), scenario["leader"])

    table = ports.storage.remote_table(world.cluster.image.topic("t"))
    segments = table.load().of_partition(0)
    named = {f"{segment.base_offset}-{segment.next_offset - 1}": segment for segment in segments}
    assert list(named) == scenario["remote"]["segments"]
    for name, segment in named.items():
        footer = read_remote(table.remote, table.folder, segment).footer
        wanted = epochs(scenario["remote"]["leader_epochs"][name])
        assert [tuple(entry) for entry in footer.lineage] == wanted

    for spec, seen in scenario["told"].items():
        found = world.cluster.offsets("t", OffsetSpec[spec.upper()])[0]
        assert isinstance(found, FoundOffset)
        assert [found.offset, found.leader_epoch] == [seen[0], epoch_of(seen[1])]

    world.cluster.topics.alter_configs(None, {LAST_TIERED: str(way == "bootstrapped").lower()})
    world.wiped(follower)
    world.cluster.bootstrap(follower).raise_for_failures()
    check_replica(world.log(follower), scenario["follower"][way])
    assert world.view.log_start_offset == scenario["follower"][way]["log_start"]
    assert follower in world.view.isr
    world.cluster.verify(deep=True).raise_for_failures()
