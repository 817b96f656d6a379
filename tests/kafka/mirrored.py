"""A cluster of ours in which topics of a Kafka are mirrored."""

from __future__ import annotations

from pathlib import Path

from stratalog import Cluster


def new_cluster(folder: Path) -> Cluster:
    """Two brokers below ``folder``, which is there; its file is ``cluster.toml``."""
    for root in ("b1", "b2"):
        (folder / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "b{n}"\n' for n in (1, 2))
    (folder / "cluster.toml").write_text(f'[cluster]\nid = "c"\nvoters = [1]\n{brokers}')
    made = Cluster.format(folder / "cluster.toml")
    made.topics.alter_configs(None, {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1})
    return made
