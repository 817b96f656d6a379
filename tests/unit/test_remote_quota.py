"""Byte quotas of the remote tier (KIP-956)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.config.settings import cluster_config
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.remote_quota import copy_throttle, fetch_throttle
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.replication.throttle import Throttle
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

COPY = "remote.log.manager.copy.max.bytes.per.second"
FETCH = "remote.log.manager.fetch.max.bytes.per.second"
KEYS = {COPY: copy_throttle, FETCH: fetch_throttle}
Quota = Callable[..., Throttle | None]


@pytest.fixture
def ports(tmp_path: Path) -> Ports:
    return ports_of(LiveCluster(tmp_path).cluster)


class Executors(LocalTasks):
    """Claims to run work in four processes."""

    processes = 4


@pytest.mark.parametrize(("key", "quota"), KEYS.items())
def test_there_is_no_limit_unless_one_is_set(ports: Ports, key: str, quota: Quota) -> None:
    """Kafka's default is the largest number of its type."""
    limit = with_ports(quota, ports)
    assert limit(cluster_config({})) is None
    assert limit(cluster_config({key: str(2**63 - 1)})) is None
    found = limit(cluster_config({key: "1000"}))
    assert found is not None
    assert found.bytes_per_s == 1000


def test_processes_that_copy_at_once_share_it(ports: Ports) -> None:
    ports.execution.tasks = Executors(1)
    found = copy_throttle(ports.execution, cluster_config({COPY: "1000"}))
    assert found is not None
    assert found.bytes_per_s == 250


def test_all_fetches_of_a_driver_spend_from_one_bucket(ports: Ports) -> None:
    """Fetches run in the driver's process, wherever its tasks run. A changed limit applies from then on."""
    ports.execution.tasks = Executors(1)
    first, again, other = (
        fetch_throttle(ports.clock, ports.memory, cluster_config({FETCH: n})) for n in ("1000", "1000", "500")
    )
    assert first is again is not None
    assert first.bytes_per_s == 1000
    assert other is not None
    assert other.bytes_per_s == 500
