"""Omitted steps of compaction and erasure (``mutations``)."""

from __future__ import annotations

from collections.abc import Sequence

import stratalog.engine.replicas.nearest
import stratalog.engine.replication.erasing
import stratalog.engine.replication.sync
import stratalog.engine.upkeep.erasing.remote
import stratalog.engine.upkeep.erasing.remote_clean
import stratalog.engine.upkeep.erasing.tasks
import stratalog.engine.upkeep.replication.compact
import stratalog.engine.upkeep.retention.vacuum
import stratalog.engine.upkeep.tiering.tasks
import stratalog.partitions.known_log
import stratalog.partitions.listing
import stratalog.partitions.rewrites.erasing
import stratalog.tiering.delta_table
from stratalog.engine.upkeep.erasing.remote import RemoteErasing
from stratalog.engine.upkeep.replication.compact import CompactWork
from stratalog.engine.upkeep.replication.compact_remote import RemoteTables
from stratalog.tiering.divergence import Histories
from tests.simulation import variants, variants_of_listings
from tests.simulation import variants_of_removal as removing
from tests.simulation.directed import (
    BOTH_COMPACT,
    ERASED_LATE,
    ERASED_TOO_EARLY,
    LATE_MERGE,
    LATE_MERGE_OF_ERASED,
    LISTED_AFTERWARDS,
    LISTED_MEANWHILE,
    MERGED_LATE,
    NOT_COMPACTED,
    REMOVED_LATE,
    STAGED,
    STAGED_BEFORE,
    UPLOADED_MEANWHILE,
    VACUUMED,
    VACUUMED_EARLY,
)
from tests.simulation.mutation import Mutation

MUTATIONS_OF_REMOVAL: Sequence[Mutation] = (
    Mutation(
        "further reach wins over a rule",
        "at each offset the file of the greatest generation counts (partitions.removal)",
        variants.all_of(
            *(
                variants.patched(module, "chain_of", variants_of_listings.chain_of_any_generation)
                for module in (stratalog.partitions.listing, stratalog.partitions.known_log)
            )
        ),
        directed=LATE_MERGE,
        script=MERGED_LATE,
        seeds=1,
    ),
    Mutation(
        "the leader follows a rule before the remote log",
        "only then the leader rewrites its own files, and followers copy them (tiering.removal)",
        variants.all_of(
            variants.patched(RemoteTables, "carry_out", removing.nothing_remote),
            variants.patched(stratalog.engine.upkeep.replication.compact, "check_follows", lambda *_: None),
        ),
        theme="compact tiered",
    ),
    Mutation(
        "a rule beyond the remote log",
        "the bound is at most the end of the remote log",
        variants.patched(CompactWork, "until", None),
        theme="compact tiered",
    ),
    Mutation(
        "a late removal adds its segments again",
        "a late commit of rewritten segments finds the replaced ones gone, or the rule recorded",
        variants.patched(stratalog.tiering.delta_table, "decide_removed", removing.removed_whatever_is_listed),
        directed=BOTH_COMPACT,
        script=REMOVED_LATE,
        seeds=1,
    ),
    Mutation(
        "a vacuum of segments that a removal is about to list",
        "an uncommitted object is deleted only if its rule is recorded",
        variants.patched(stratalog.engine.upkeep.retention.vacuum, "find_litter", removing.litter_of_any_rule),
        directed=VACUUMED,
        script=VACUUMED_EARLY,
        seeds=1,
    ),
    Mutation(
        "an upload from before an erasure",
        "a commit leaves out partitions with a later erasure than the view of its plan (tiering.erasure)",
        variants.patched(Histories, "knows", variants.true),
        theme="erase tiered",
        first=60,
    ),
    Mutation(
        "the leader erases before the remote log",
        "only then the leader rewrites its own files, and followers copy them (tiering.erasure)",
        variants.patched(RemoteErasing, "carry_out", removing.nothing_refused),
        theme="erase tiered",
        first=8,
    ),
    Mutation(
        "any segment of a follower replaces the leader's",
        "a file of a greater generation replaces one of a lesser generation, and never the reverse",
        variants.patched(stratalog.engine.replication.sync, "_merged_over", removing.merged_over_any_generation),
        theme="compact",
        first=8,
    ),
    Mutation(
        "only the part of a file in the log is erased",
        "the whole file counts, not only the part in the log (partitions.erasure)",
        variants.all_of(
            *(
                variants.patched(module, "to_erase", removing.to_erase_in_the_log)
                for module in (
                    stratalog.partitions.rewrites.erasing,
                    stratalog.engine.upkeep.erasing.tasks,
                    stratalog.engine.upkeep.tiering.tasks,
                )
            ),
            *(
                variants.patched(module, "is_erased", removing.is_erased_in_the_log)
                for module in (
                    stratalog.engine.replicas.nearest,
                    stratalog.engine.replication.erasing,
                    stratalog.engine.upkeep.erasing.tasks,
                    stratalog.engine.upkeep.replication.compact,
                )
            ),
        ),
        directed=LATE_MERGE_OF_ERASED,
        script=ERASED_LATE,
        seeds=1,
    ),
    Mutation(
        "further reach wins over an erasure",
        "at each offset the file of the greatest generation counts (partitions.removal)",
        variants.all_of(
            *(
                variants.patched(module, "chain_of", variants_of_listings.chain_of_any_generation)
                for module in (stratalog.partitions.listing, stratalog.partitions.known_log)
            )
        ),
        directed=LATE_MERGE_OF_ERASED,
        script=ERASED_LATE,
        seeds=1,
    ),
    Mutation(
        "an erasure recorded whatever is listed",
        "in a version of its own that names it only if no listed segment holds a named offset (tiering.erasure)",
        variants.patched(stratalog.tiering.delta_table, "decide_erased", removing.erased_whatever_is_listed),
        directed=UPLOADED_MEANWHILE,
        script=LISTED_MEANWHILE,
        seeds=1,
    ),
    Mutation(
        "no version where nothing was rewritten",
        "this version is made also if nothing was rewritten (tiering.erasure)",
        variants.patched(RemoteErasing, "_commit", removing.recorded_where_rewritten),
        directed=UPLOADED_MEANWHILE,
        script=LISTED_AFTERWARDS,
        seeds=1,
    ),
    Mutation(
        "no wait for staged uploads",
        "first the walk waits for staged uploads, as on brokers (tiering.erasure)",
        variants.patched(
            stratalog.engine.upkeep.erasing.remote_clean, "unfinished_uploads", removing.nothing_unfinished
        ),
        directed=STAGED,
        script=STAGED_BEFORE,
        seeds=1,
    ),
    Mutation(
        "files with erased records are uploaded",
        "a plan leaves out files that an erasure of its own view names (tiering.erasure)",
        variants.patched(stratalog.engine.upkeep.tiering.tasks, "_unerased", removing.no_file_waits),
        theme="erase compact tiered",
        first=33,
    ),
    Mutation(
        "an erasure before the remote part of a compaction",
        "an erasure is committed when the table records the compaction before it (tiering.erasure)",
        variants.patched(stratalog.engine.upkeep.erasing.remote, "lacks_compaction", variants.false),
        directed=ERASED_TOO_EARLY,
        script=NOT_COMPACTED,
        seeds=1,
    ),
)
