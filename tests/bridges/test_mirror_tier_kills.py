"""``kill -9`` of a mirror that reads the tier side by side, again and again, and then one that ends."""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from stratalog.bridges.mirror.compare import compare
from tests.bridges.kafka_tier_data import real
from tests.bridges.mirror_tier_victim import mirror_by_parts
from tests.bridges.test_mirror_tier import Brokers
from tests.depth import at_depth
from tests.kafka.mirrored import new_cluster
from tests.ports import ports_of, with_ports

pytestmark = [real, pytest.mark.slow]
TOPICS = ("plain", "txn")
KILLS = at_depth(test=10, nightly=100) // len(TOPICS)
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.bridges.mirror_tier_victim"])


@pytest.mark.long("a process for each kill")
@pytest.mark.parametrize("topic", TOPICS)
def test_no_kill_makes_a_record_twice_or_loses_one(topic: str, tmp_path: Path) -> None:
    draw, within_s, killed, number = random.Random(f"kills {topic}"), 3.0, 0, 0
    while killed < KILLS:
        folder = tmp_path / str(number)
        folder.mkdir()
        number += 1
        with closing(new_cluster(folder)) as cluster:
            while True:
                process = _FORKS.Process(target=mirror_by_parts, args=(str(folder / "cluster.toml"), topic))
                process.start()
                began = time.monotonic()
                process.join(draw.random() * within_s if killed < KILLS else 120)
                if process.exitcode is not None:
                    assert process.exitcode == 0
                    within_s = max(0.2, time.monotonic() - began)
                    break
                process.kill()
                process.join()
                killed += 1
            with_ports(compare, ports_of(cluster))(Brokers(topic), [topic]).raise_for_failures()
            cluster.verify(deep=True).raise_for_failures()
