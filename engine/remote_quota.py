"""Byte quotas of the remote tier: what one run may copy there, and fetch from there, in a second (KIP-956).

How exact: the limit is of one run, and its processes get an equal share each (``Throttle.shared_by``), so that
all of them together stay below it; what a process does not use, no other gets. Whole segments are paid for
before they move: a second's worth, and the last segment, may go at once at the beginning of each task. Two runs
at once have the limit each, as two brokers have in Kafka.
"""

from __future__ import annotations

from engine.config_keys import NO_LIMIT
from engine.context import Context
from engine.replication.throttle import Throttle
from engine.settings import ClusterConfig


def copy_throttle(context: Context, config: ClusterConfig) -> Throttle | None:
    """Each task's share of remote.log.manager.copy.max.bytes.per.second; None: no limit."""
    return _share(context, config.remote_log_manager_copy_max_bytes_per_second)


def fetch_throttle(context: Context, config: ClusterConfig) -> Throttle | None:
    """Each task's share of remote.log.manager.fetch.max.bytes.per.second; None: no limit."""
    return _share(context, config.remote_log_manager_fetch_max_bytes_per_second)


def _share(context: Context, bytes_per_s: int) -> Throttle | None:
    if bytes_per_s >= NO_LIMIT:
        return None
    return Throttle(bytes_per_s, context.clock).shared_by(context.tasks.processes)
