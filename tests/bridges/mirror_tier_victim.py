"""A process that mirrors a topic from its tier, side by side, until it is done or killed."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from stratalog import Cluster
from stratalog.bridges.kafka_tier import tasks
from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.mirror import side_by_side
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.driver.tasks import LocalTasks
from tests.bridges.test_mirror_tier import whole
from tests.kafka.mirrored import new_cluster
from tests.ports import ports_of, with_ports

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


class AtOnce(LocalTasks):
    """Reads several parts of one partition at once."""

    processes = 2


def mirror_by_parts(cluster_file: str, topic: str, brokers: str = "", tier: str = "") -> None:
    """Mirror in small parts, with few parts per round. ``brokers``: real brokers with their tier; otherwise
    recorded segments."""
    tasks.TASK_BYTES = 1000 if brokers else 4000
    side_by_side._PARTS = 3
    if brokers:
        source = TieredSource(KafkaTier.open(tier, layout="local", bootstrap=brokers), open_source(brokers))
    else:
        source = whole(topic)
    options = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True)
    with closing(Cluster.open(Path(cluster_file))) as cluster:
        ports = ports_of(cluster).with_tasks(AtOnce(6))
        with_ports(mirror, ports)(source, [topic], options).raise_for_failures()


def killed_mirrors(parent: Path, kills: int, seed: str, within_s: float, *given: str) -> Iterator[Cluster]:
    """Yield new clusters below ``parent`` until ``kills`` is reached. ``mirror_by_parts(file, *given)`` fills each
    of them. It is killed at random moments, and finally runs to its end. ``within_s``: the latest moment in the
    first cluster.
    """
    draw, killed, number = random.Random(seed), 0, 0
    while killed < kills:
        folder = parent / str(number)
        folder.mkdir()
        number += 1
        with closing(new_cluster(folder)) as cluster:
            while True:
                process = _FORKS.Process(target=mirror_by_parts, args=(str(folder / "cluster.toml"), *given))
                process.start()
                began = time.monotonic()
                process.join(draw.random() * within_s if killed < kills else 120)
                if process.exitcode is not None:
                    assert process.exitcode == 0
                    within_s = max(0.2, time.monotonic() - began)
                    break
                process.kill()
                process.join()
                killed += 1
            yield cluster
    print(f"{killed} kills, {number} copies")
