"""Omitted steps of erasures in topics with snapshots (``mutations``)."""

from __future__ import annotations

from collections.abc import Sequence

import stratalog.engine.metadata.snapshot_erasure_commands
import stratalog.engine.upkeep.erasing.snapshot_tasks
from tests.simulation import variants
from tests.simulation import variants_of_removal as removing
from tests.simulation.mutation import Mutation

MUTATIONS_OF_SNAPSHOTS: Sequence[Mutation] = (
    Mutation(
        "an erasure before the members have its snapshot",
        "every member of the ISR copies it, and verifies every byte (snapshots.erasure, step 4)",
        variants.patched(
            stratalog.engine.upkeep.erasing.snapshot_tasks, "copy_to_members", removing.nothing_copied
        ),
        theme="erase snapshots",
        first=3,
    ),
    Mutation(
        "an erasure whatever has changed",
        "one commit adds the erasure, if the partition has not changed since (snapshots.erasure, step 5)",
        variants.patched(
            stratalog.engine.metadata.snapshot_erasure_commands, "_checked", removing.whatever_has_changed
        ),
        theme="erase snapshots",
        first=12,
    ),
    Mutation(
        "outdated snapshots stay",
        "all outdated snapshots are deleted (snapshots.erasure, step 7)",
        variants.patched(
            stratalog.engine.upkeep.erasing.snapshot_tasks, "outdated_files", removing.nothing_outdated
        ),
        theme="erase snapshots",
        first=3,
    ),
)
