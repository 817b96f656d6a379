"""The tasks of a run for partitions with and without snapshots."""

from __future__ import annotations

from stratalog.engine.upkeep.erasing import snapshot_tasks, tasks
from stratalog.engine.upkeep.erasing.tasks import CleanedReplicas, Erased, EraseWork, PlannedErasing


def plan_partition(work: EraseWork) -> PlannedErasing:
    """See ``tasks.plan_partition``, ``snapshot_tasks.plan_below``."""
    return tasks.plan_partition(work) if work.snapshots is None else snapshot_tasks.plan_below(work)


def erase_partition(work: EraseWork) -> Erased:
    """See ``tasks.erase_partition``, ``snapshot_tasks.erase_below``."""
    return tasks.erase_partition(work) if work.snapshots is None else snapshot_tasks.erase_below(work)


def clean(work: EraseWork) -> CleanedReplicas:
    """See ``tasks.clean``, ``snapshot_tasks.clean_below``."""
    return tasks.clean(work) if work.snapshots is None else snapshot_tasks.clean_below(work)
