"""Omitted steps of the protocol. Each variant belongs to one sentence marked (!); the simulation must find it.
``tests.quorum`` omits those of the metadata log (section 5).

A proof that cannot fail proves nothing. The variants are made by patching, without any switch in the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import stratalog.engine.metadata.election_commands
import stratalog.engine.metadata.fold
import stratalog.engine.records.acknowledge
import stratalog.engine.records.coordinator
import stratalog.engine.replication.append
import stratalog.engine.replication.append_file
import stratalog.engine.replication.leader
import stratalog.engine.replication.log_end
import stratalog.engine.replication.lost_log
import stratalog.engine.replication.sync
import stratalog.engine.state.transaction_steps
import stratalog.engine.upkeep.maintenance.maintain
import stratalog.engine.upkeep.replication.merge
import stratalog.engine.upkeep.replication.replicate
import stratalog.engine.upkeep.replication.syncing
import stratalog.engine.upkeep.retention.tasks
import stratalog.engine.upkeep.tiering.tasks
import stratalog.partitions.known_log
import stratalog.partitions.listing
import stratalog.partitions.producer_changes
import stratalog.partitions.replica
import stratalog.tiering.copier
import tests.simulation.stores
import tests.simulation.transacting
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions import paths
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.replica import Replica
from tests.simulation import variants, variants_of_listings
from tests.simulation.directed import (
    AHEAD,
    BEHIND,
    EXPANDING,
    FORGOTTEN,
    JOINED_UNSEEN,
    LAST_MEMBER,
    LEFT_BEHIND,
    ON_ITS_WAY,
    PASSED,
    PASSED_MEANWHILE,
    REMEMBERED,
    REUSE,
    REUSED_NAMES,
    REVIVAL,
    REVIVED,
    STARTING_OVER,
    UNSEEN,
    deleting,
    in_pages,
    overlapping,
)
from tests.simulation.mirroring import with_mirrors
from tests.simulation.mutation import Mutation

MUTATIONS: Sequence[Mutation] = (
    *(
        Mutation(
            name,
            what,
            variants.patched(tests.simulation.stores, place, variant),
            theme="base",
            shaped=in_pages,
            first=first,
        )
        for name, what, place, variant, first in (
            (
                "one scan",
                "a listing is two scans: what one shows alone may have holes",
                "stable_listing",
                variants_of_listings.first_scan,
                1360,
            ),
            (
                "all of the second scan",
                "what the second scan shows behind the end of the first is left out: it may have holes",
                "objects_together",
                variants_of_listings.all_of_the_second,
                1153,
            ),
            (
                "the first scan with its holes",
                "the second scan fills the holes of the first",
                "objects_together",
                variants_of_listings.holes_and_all,
                4468,
            ),
            (
                "late high watermarks are claims",
                "a high watermark that came meanwhile does not say that what is listed is cut off",
                "objects_together",
                variants_of_listings.never_late,
                311,
            ),
        )
    ),
    Mutation(
        "no root check",
        "after every listing, broker.json must hold the directory id that is registered",
        variants.patched(Replica, "check_root", lambda replica: None),
        theme="wipe",
        first=239,
    ),
    Mutation(
        "no directory id in the path",
        "the directory id is in the path",
        variants.patched(paths, "replica_path", variants_of_listings.folder_without_incarnation),
        theme="wipe",
        first=835,
    ),
    Mutation(
        "end of epoch",
        "the end of epoch e is the start of the first entry above e, whether or not e is in the lineage",
        variants.patched(Lineage, "end_of", variants_of_listings.end_of_known_epoch),
        first=784,
    ),
    Mutation(
        "live merged segments",
        "a merged segment is live only if it ends above the local start",
        variants.all_of(
            variants.patched(stratalog.partitions.listing, "is_live", variants_of_listings.is_live),
            variants.patched(stratalog.partitions.known_log, "is_live", variants_of_listings.is_live),
        ),
        theme="delete",
        shaped=deleting,
        first=18,
    ),
    Mutation(
        "no chain",
        "the log is a chain from the local start",
        variants_of_listings.without_chain,
        theme="reuse",
        shaped=overlapping,
        first=5455,
    ),
    Mutation(
        "dead files above the high watermark",
        "a vacuum removes dead files only below the high watermark",
        variants.patched(stratalog.engine.upkeep.retention.tasks, "removable", variants.removable_also_above),
        directed=REVIVED,
        script=REVIVAL,
    ),
    Mutation(
        "append without looking again",
        "append 4: list the leader again, the file must be in the log",
        variants.patched(
            stratalog.engine.replication.append, "_append_to_leader", variants.append_without_looking_again
        ),
        shaped=deleting,
        theme="reuse",
        first=2030,
    ),
    Mutation(
        "a first append that does not look at the remote log",
        "append 1: at the first contact under an epoch the leader's log reaches the end of the remote log",
        variants.patched(PartitionReplicas, "check_remote_end", variants.nothing),
        theme="behind",
        first=92,
    ),
    Mutation(
        "damage by a view that has passed",
        "replicate: a view that has passed proves no damage of its leader",
        variants.patched(stratalog.engine.upkeep.replication.replicate, "_forget_stale", variants.nothing),
        directed=PASSED,
        script=PASSED_MEANWHILE,
    ),
    Mutation(
        "a leader that continues from its own end",
        "take over: the epoch that an election began for it continues from the end of the remote log",
        variants.patched(stratalog.engine.replication.leader, "begin_at_remote_end", variants.begin_at_own_end),
        theme="behind",
    ),
    Mutation(
        "a lost log that looks new",
        "take over: a leader without any of the records that the metadata know of has lost its log",
        variants.all_of(
            variants.patched(stratalog.engine.replication.lost_log, "is_lost", variants.false),
            variants.patched(stratalog.engine.replication.leader, "is_lost", variants.false),
        ),
        theme="lost",
        first=15,
    ),
    Mutation(
        "a lost log that begins at its log start",
        "elect: a lost log begins again at the last offset that the metadata know",
        variants.patched(
            stratalog.engine.metadata.election_commands, "_begin_again", variants.begin_again_at_its_log_start
        ),
        theme="lost",
        first=42,
    ),
    Mutation(
        "a lost log that begins in its folders",
        "elect: a lost log begins again in new folders, where nothing of the old one arrives",
        variants.patched(
            stratalog.engine.metadata.election_commands, "_begin_again", variants.begin_again_in_its_folders
        ),
        theme="lost",
        shaped=lambda configuration: replace(configuration, late_write_rate=0.3),
    ),
    Mutation(
        "uploads that are known by their names",
        "an object that has the name already is reused where it is what would be uploaded, byte for byte",
        variants.patched(stratalog.tiering.copier, "_reused", variants.reused_by_its_name),
        theme="earlier",
        first=21,
    ),
    Mutation(
        "an end that is known for good",
        "append 4: the end that is known is the end, unless a register behind it says otherwise",
        variants.patched(stratalog.engine.replication.log_end, "_is_unchanged", variants.true),
        directed=REMEMBERED,
        script=FORGOTTEN,
    ),
    Mutation(
        "a log that is known for good",
        "a remembered log continues from a listing that was made now",
        variants.patched(stratalog.partitions.replica, "known_again", variants_of_listings.known_for_good),
    ),
    Mutation(
        "a follower that is known to lack nothing",
        "sync 4: a follower lacks nothing where neither it nor the leader has changed since it was found so",
        variants.patched(stratalog.engine.replication.sync, "_still_done", variants.done_for_good),
    ),
    Mutation(
        "an end that is known under every view",
        "append 1: an end is known under the view under which it was found",
        variants.ends_of_any_view,
        first=17,
    ),
    Mutation(
        "not there is not written",
        "a request without an answer may be on its way: its outcome is unknown, also when its file is not there",
        variants.patched(stratalog.engine.replication.append, "_commit", variants.not_there_is_not_written),
        directed=ON_ITS_WAY,
        seeds=100,
    ),
    Mutation(
        "no sync before the acknowledgement",
        "append 5: sync every other replica of the ISR and of those being added",
        variants.all_of(
            variants.patched(stratalog.engine.replication.append, "replicate", variants.nothing_missed),
            variants.patched(stratalog.engine.records.acknowledge, "replicate", variants.nothing_missed),
        ),
    ),
    Mutation(
        "no linearizable read",
        "append 6: the partition epoch is read again",
        variants.all_of(
            variants.patched(stratalog.engine.records.acknowledge, "is_current", variants.true),
            variants.patched(stratalog.engine.records.acknowledge, "_same_log", variants.true),
        ),
    ),
    Mutation(
        "those being added do not count",
        "append 5: ... and of those being added",
        variants.patched(
            PartitionReplicas,
            "acknowledging",
            property(lambda replicas: sorted(set(replicas.view.isr) - {replicas.view.leader})),
        ),
        directed=EXPANDING,
        first=7,
    ),
    Mutation(
        "high watermark without joining",
        "the high watermark counts a replica's log end after it joined",
        variants.patched(stratalog.engine.replication.sync, "join", variants.no_join),
    ),
    Mutation(
        "high watermark without a read",
        "the high watermark advances once the partition epoch was found unchanged by a linearizable read",
        variants.patched(stratalog.engine.upkeep.replication.syncing, "is_current", variants.true),
        directed=UNSEEN,
        script=JOINED_UNSEEN,
    ),
    Mutation(
        "copies before .local",
        "starting over creates .local before the first copy",
        variants.register_later,
        directed=STARTING_OVER,
    ),
    Mutation(
        "copies of names",
        "a copy is of the listed object",
        variants.patched(stratalog.engine.replication.sync, "_copy", variants.copy_of_the_name),
        directed=REUSED_NAMES,
        script=REUSE,
    ),
    Mutation(
        "one sync for both commits",
        "expand 3: list L after the commit of *adding*, and sync F to it",
        variants.patched(
            stratalog.engine.upkeep.replication.replicate, "_expand", variants.expand_without_second_sync
        ),
        directed=EXPANDING,
        first=9,
    ),
    Mutation(
        "markers without a raised epoch",
        "a marker carries the raised producer epoch: late appends of the ended transaction are refused",
        variants.without_raised_epoch,
        theme="transactions",
        first=128,
    ),
    Mutation(
        "an end that forgets a partition",
        "the end of a transaction leaves out partitions in which nothing was tried, and no other",
        variants.patched(stratalog.engine.state.transaction_steps, "end", variants.end_without_the_last),
        theme="transactions",
    ),
    *(
        Mutation(
            name,
            what,
            variants.patched(module, "transactions_of", variants.open_transactions_hold_nobody_back),
            theme="transactions",
            first=first,
        )
        for name, what, module, first in (
            (
                "open transactions hold nobody back",
                "readers of committed records stop at the last stable offset",
                tests.simulation.transacting,
                1,
            ),
            (
                "merges beyond the last stable offset",
                "merges stop at the last stable offset",
                stratalog.engine.upkeep.replication.merge,
                50,
            ),
            (
                "the remote tier beyond the last stable offset",
                "tiering stops at the last stable offset",
                stratalog.engine.upkeep.tiering.tasks,
                90,
            ),
        )
    ),
    Mutation(
        "settled whatever is left",
        "a step has nothing to do for a partition where nothing failed, and all was reached (maintain)",
        variants.patched(stratalog.engine.upkeep.replication.replicate, "_is_settled", variants.true),
        directed=LEFT_BEHIND,
        first=16,
    ),
    Mutation(
        "settled by a later look",
        "what a step finds settled is remembered with the look from before it (maintain)",
        variants.patched(
            stratalog.engine.upkeep.maintenance.maintain._Maintenance, "_settle", variants.settled_by_a_later_look
        ),
        theme="maintain",
        first=3138,
    ),
    Mutation(
        "decisions that count on trust",
        "a change of a transaction's state counts only where it stands behind the state that it rests on",
        variants.patched(stratalog.engine.records.coordinator, "_following", variants.counted_on_trust),
        theme="transactions",
    ),
    Mutation(
        "changes of producers without the rest",
        "a footer holds the producers that were touched since an offset: the others are as they were there",
        variants.patched(Replica, "_producers_after", variants.changes_alone),
        theme="base",
    ),
    Mutation(
        "changes of one append alone",
        "a footer holds the producers that were touched since its offset by all appends",
        variants.patched(stratalog.partitions.producer_changes, "next_level", variants.touched_by_the_last),
        theme="base",
    ),
    Mutation(
        "changes that rest on another history",
        "the state that changes rest on is of the log, by the lineage",
        variants.patched(Replica, "_producers_after", variants.file_of_any_epoch),
        first=79,
    ),
    Mutation(
        "remote segments with some producers",
        "what leaves the log tells all producers",
        variants.patched(stratalog.tiering.copier, "as_whole", lambda _, run: run),
        theme="behind",
        first=10,
    ),
    Mutation(
        "a sequence with any records",
        "one producer and sequence identify one set of records, and another set under them is refused",
        variants.patched(stratalog.engine.replication.append, "check_same_records", variants.true),
        theme="base",
    ),
    Mutation(
        "only the last sequence is known",
        "a sequence that was appended is a duplicate, however many came after it",
        variants.patched(stratalog.engine.replication.append, "earlier_attempt", variants.only_the_last_is_known),
        theme="base",
    ),
    Mutation(
        "a mirror appends wherever the log ends",
        "records of a mirror are appended at their offset, or not at all",
        variants.patched(stratalog.engine.replication.append, "_check_place", variants.true),
        theme="base",
        shaped=with_mirrors,
        first=456,
    ),
    Mutation(
        "a driver's clock alone",
        "what is removed by time goes by the clocks of the driver and of the storage, where they agree",
        variants.patched(stratalog.engine.replication.append_file, "agreed_ms", variants.by_the_driver),
        directed=AHEAD,
    ),
    Mutation(
        "times that the driver's clock alone says",
        "a time by which others remove is the later of the driver's and the storage's",
        variants.patched(stratalog.engine.replication.append_file, "stamp_ms", variants.by_the_driver),
        directed=BEHIND,
    ),
    Mutation(
        "register keeps the last member",
        "another incarnation leaves every ISR, also as the last member",
        variants.patched(stratalog.engine.metadata.fold, "_without", variants.without_but_last),
        directed=LAST_MEMBER,
    ),
)
