"""Byte quotas of the remote tier: the bytes per second that one driver may copy and fetch (KIP-956).

Copies: each run of ``tier`` or ``compact`` has one limit, divided equally among the run's processes
(``Throttle.shared_by``), so that the sum of the shares stays below the limit. An unused share is not passed on. A
segment is paid for in full before it is copied. At the start of each task, one second's worth of bytes and the
last segment may be copied immediately.

Fetches: one limit applies to all fetches of one driver (``Cluster.fetch``), which run in the driver's process. It
applies to the records that are read from remote segments; cached records and footers are free. A read waits until
earlier reads are paid for, and may then have any size, so any row group can be read under any limit. A read that
would wait longer than the fetch's timeout fails immediately.

Each driver has the full limit, like each broker in Kafka. As in Kafka, the fetch quota is for consumers: Spark
scans, bootstraps, restores and ``verify --deep`` read without a quota.
"""

from __future__ import annotations

from stratalog.engine.config.cluster_config import NO_LIMIT, ClusterConfig
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.clock import Clock


def copy_throttle(execution: Execution, config: ClusterConfig) -> Throttle | None:
    """Each task's share of remote.log.manager.copy.max.bytes.per.second; None: no limit."""
    bytes_per_s = config.remote_log_manager_copy_max_bytes_per_second
    if bytes_per_s >= NO_LIMIT:
        return None
    return Throttle(bytes_per_s, execution.clock).shared_by(execution.tasks.processes)


def fetch_throttle(clock: Clock, memory: Memory, config: ClusterConfig) -> Throttle | None:
    """The budget of all fetches of this driver (remote.log.manager.fetch.max.bytes.per.second); the same object
    until the limit changes. None: no limit.
    """
    bytes_per_s = config.remote_log_manager_fetch_max_bytes_per_second
    if bytes_per_s >= NO_LIMIT:
        return None
    kept = memory.fetching.throttle
    if kept is None or kept.bytes_per_s != bytes_per_s:
        kept = memory.fetching.throttle = Throttle(bytes_per_s, clock)
    return kept
