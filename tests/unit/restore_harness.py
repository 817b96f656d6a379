"""A cluster with data in the remote tier, and the cluster that restores it."""

from __future__ import annotations

from pathlib import Path

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.driver.report import Report
from stratalog.partitions.store import StoreOptions
from tests.unit.cluster_harness import LiveCluster

CONFIGS = {"local_retention_bytes": "-1", "compression_type": "lz4"}


def partly_tiered(folder: Path) -> LiveCluster:
    """Cluster ``c``: ``t``, two partitions, typed; of partition 0 [0, 6) are tiered, and [6, 8) are not; of
    partition 1 nothing."""
    made = LiveCluster(folder)
    made.cluster.topics.alter_configs(None, {"default.replication.factor": "2"})
    made.tiered(partitions=2, **CONFIGS)
    append(made, range(3))
    made.cluster.elect("t", [0], leader=made.followers()[0]).raise_for_failures()
    append(made, range(3, 6))
    made.cluster.tier().raise_for_failures()
    append(made, range(6, 8))
    return made


def append(live: LiveCluster, numbers: range, driver: Cluster | None = None) -> None:
    for number in numbers:
        live.append(
            [f"v{number}"], producer="p", sequence=number, at_ms=number, driver=driver
        ).raise_for_failures()


class Heir:
    """The brokers of the future cluster ``heir``, with the same remote tier."""

    def __init__(self, live: LiveCluster, brokers: int = 3, cluster_id: str = "heir") -> None:
        self.live = live
        self.folder = live.folder / cluster_id
        self.folder.mkdir()
        self.file = self.folder / "cluster.toml"
        lines = ["[cluster]", f'id = "{cluster_id}"', 'remote = "../remote"', "voters = [1]"]
        for broker in range(1, brokers + 1):
            lines += ["[[brokers]]", f"id = {broker}", f'log_dir = "memory://{cluster_id}-b{broker}"']
        self.file.write_text("\n".join(lines))

    def restore(self, former: str = "c", *, dry_run: bool = False) -> Report:
        return with_parts(
            Cluster, clock=self.live.clock, new_id=self.live.new_id, opener=self.live.open_root
        ).restore(self.file, former, dry_run=dry_run, check=False)

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever written to broker 1."""
        root = self.live.open_root(f"memory://{self.folder.name}-b1", StoreOptions(), self.live.clock)
        return not root.list("")

    def open(self) -> Cluster:
        return with_parts(
            Cluster, clock=self.live.clock, new_id=self.live.new_id, opener=self.live.open_root
        ).open(self.file, keeps_short=False)

    def live_again(self) -> LiveCluster:
        """The harness on the restored cluster."""
        self.live.cluster = self.open()
        return self.live


def restored(live: LiveCluster) -> LiveCluster:
    heir = Heir(live)
    heir.restore().raise_for_failures()
    return heir.live_again()
