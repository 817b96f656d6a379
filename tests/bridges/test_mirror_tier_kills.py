"""``kill -9`` of a mirror that reads the tier side by side, repeatedly, and then a run to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.bridges.mirror.compare import compare
from tests.bridges.kafka_tier_data import real
from tests.bridges.mirror_tier_victim import killed_mirrors
from tests.bridges.test_mirror_tier import Brokers
from tests.depth import at_depth
from tests.ports import ports_of, with_ports

pytestmark = [real, pytest.mark.slow]
TOPICS = ("plain", "txn")
KILLS = at_depth(test=10, nightly=100) // len(TOPICS)


@pytest.mark.sample(1)
@pytest.mark.long("a process for each kill")
@pytest.mark.parametrize("topic", TOPICS)
def test_no_kill_makes_a_record_twice_or_loses_one(topic: str, tmp_path: Path) -> None:
    for cluster in killed_mirrors(tmp_path, KILLS, f"kills {topic}", 3.0, topic):
        with_ports(compare, ports_of(cluster))(Brokers(topic), [topic]).raise_for_failures()
        cluster.verify(deep=True).raise_for_failures()
