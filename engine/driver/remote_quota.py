"""Byte quotas of the remote tier: what one driver may copy there, and fetch from there, in a second (KIP-956).

Copies: the limit is of one tier run, and its processes get an equal share each (``Throttle.shared_by``), so that
all of them together stay below it; what a process does not use, no other gets. Whole segments are paid for
before they move: a second's worth, and the last segment, may go at once at the beginning of each task.

Fetches: the limit is of all fetches of one driver (``Cluster.fetch``), which run in its process, and counts the
records that are read of remote segments; records remembered from earlier reads are free, so are footers. A read
waits until those before it are paid for, then it may be as large as it is: each row group gets its turn, however
small the limit. A read that would have to wait beyond the fetch's time-out is an error at once.

Two drivers have the limit each, as two brokers have in Kafka. As there, the fetch quota is for consumers. Scans of
Spark read the files without asking anybody. A bootstrap or a restore reads one footer a partition; ``verify
--deep``, which reads all that is remote, is run by somebody who wants just that.
"""

from __future__ import annotations

from stratalog.engine.config.cluster_config import NO_LIMIT, ClusterConfig
from stratalog.engine.driver.context import Context
from stratalog.engine.replication.throttle import Throttle


def copy_throttle(context: Context, config: ClusterConfig) -> Throttle | None:
    """Each task's share of remote.log.manager.copy.max.bytes.per.second; None: no limit."""
    bytes_per_s = config.remote_log_manager_copy_max_bytes_per_second
    if bytes_per_s >= NO_LIMIT:
        return None
    return Throttle(bytes_per_s, context.clock).shared_by(context.tasks.processes)


def fetch_throttle(context: Context, config: ClusterConfig) -> Throttle | None:
    """The budget of all fetches of this driver (remote.log.manager.fetch.max.bytes.per.second), the same one until
    the limit changes; None: no limit.
    """
    bytes_per_s = config.remote_log_manager_fetch_max_bytes_per_second
    if bytes_per_s >= NO_LIMIT:
        return None
    kept = context.fetching.throttle
    if kept is None or kept.bytes_per_s != bytes_per_s:
        kept = context.fetching.throttle = Throttle(bytes_per_s, context.clock)
    return kept
