"""Steps of the protocol left out. Each variant stands for one sentence marked (!); the simulation must find it.
Those of the metadata log (section 5) are left out in ``tests.quorum``.

A proof that cannot fail proves nothing. The variants are made here, by patching; the product has no switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import stratalog.engine.metadata.election_commands
import stratalog.engine.metadata.fold
import stratalog.engine.quorum.contents
import stratalog.engine.quorum.log
import stratalog.engine.records.acknowledge
import stratalog.engine.records.coordinator
import stratalog.engine.replication.append
import stratalog.engine.replication.append_file
import stratalog.engine.replication.leader
import stratalog.engine.replication.log_end
import stratalog.engine.replication.lost_log
import stratalog.engine.replication.sync
import stratalog.engine.state.transaction_steps
import stratalog.engine.upkeep.erasing.remote_clean
import stratalog.engine.upkeep.maintenance.maintain
import stratalog.engine.upkeep.replication.merge
import stratalog.engine.upkeep.replication.proving
import stratalog.engine.upkeep.replication.replicate
import stratalog.engine.upkeep.retention.tasks
import stratalog.engine.upkeep.retention.vacuum
import stratalog.engine.upkeep.tiering.tasks
import stratalog.partitions.erasure
import stratalog.partitions.known_log
import stratalog.partitions.lineage
import stratalog.partitions.listing
import stratalog.partitions.producer_changes
import stratalog.partitions.replica
import stratalog.partitions.retention
import stratalog.tiering.copier
import stratalog.tiering.delta_table
import tests.simulation.stores
import tests.simulation.transacting
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.erasing.remote import RemoteErasing
from stratalog.engine.upkeep.replication.compact import CompactWork
from stratalog.engine.upkeep.replication.compact_remote import RemoteTables
from stratalog.partitions import paths
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.replica import Replica
from stratalog.tiering.divergence import Histories
from tests.simulation import variants
from tests.simulation.configuration import (
    DAYS_APART_MS,
    EXPIRES_SOONER,
    Configuration,
    configuration_of,
    small,
)
from tests.simulation.mirroring import with_mirrors
from tests.simulation.running import Result, Run
from tests.simulation.strategies import Script, Seeded


@dataclass(frozen=True, slots=True)
class Mutation:
    """One (!) left out."""

    name: str
    what: str
    """The sentence of the protocol."""
    apply: Callable[[], AbstractContextManager[object]]
    theme: str | None = None
    """Of which runs; None: of all kinds."""
    directed: Configuration | None = None
    """Runs of this configuration only, with schedules by seed."""
    script: Sequence[tuple[str, str]] = ()
    """The schedule of the directed configuration by hand: a window so small that seeds rarely hit it."""
    shaped: Callable[[Configuration], Configuration] = lambda configuration: configuration
    """What the runs have in common besides."""
    voters: int | None = None
    first: int = 1
    """Seeds from here on ..."""
    seeds: int = 1000
    """... so many: one of them must fail."""

    def configuration(self, seed: int) -> Configuration:
        """Of a seed, as this mutation needs it."""
        if self.directed is not None:
            return self.shaped(replace(self.directed, seed=seed))
        configuration = replace(configuration_of(seed, self.theme, self.voters), ahead_ms=())
        return self.shaped(configuration)

    def run(self, seed: int) -> Result:
        """The run of a seed; patch the product before."""
        configuration = self.configuration(seed)
        return Run(configuration).run(Script(*self.script) if self.script else Seeded(configuration))


def _in_pages(configuration: Configuration) -> Configuration:
    return replace(configuration, page=1)


def _overlapping(configuration: Configuration) -> Configuration:
    configs = dict(configuration.shape.topic_configs)
    configs |= {"file.delete.delay.ms": "40", "retention.bytes": "6000", "segment.bytes": "5000"}
    return replace(configuration, shape=replace(configuration.shape, topic_configs=tuple(configs.items())))


def _deleting(configuration: Configuration) -> Configuration:
    configs = dict(configuration.shape.topic_configs)
    configs |= {"file.delete.delay.ms": "0", "retention.bytes": "2500", "segment.bytes": "1073741824"}
    return replace(configuration, shape=replace(configuration.shape, topic_configs=tuple(configs.items())))


_STARTING_OVER = replace(
    small(
        "replicate",
        "replicate",
        setup="append p9 0 0 1; shrink 1 0; shrink 2 0;"
        "append p9 1 0 1; append p9 2 0 1; append p9 3 0 1; retain; retain",
        retention_bytes="2500",
    ),
    schedule="priorities",
    horizon=40,
)
_REUSED_NAMES = small(
    "append p0 0 0 1",
    "append p1 0 0 1; retain; retain",
    "replicate",
    setup="append p9 0 0 1; shrink 1 0; shrink 2 0",
    retention_bytes="0",  # whatever is committed expires: names become free, however large their files were
)
_REUSE = (
    ("d0", "commit 1.1 b2"),  # broker 2 leads; d0 is about to append there
    ("d1", "create 2.local b2"),  # d1 has appended 1.1 ...
    ("d2", "read 1.1 b2"),  # ... which d2 is about to copy to broker 1
    ("d1", ""),  # it expires, and is deleted
    ("d0", ""),  # d0 gives its name to other records, sees that they are in no log, and appends them again
    ("d2", ""),
)
_REMEMBERED = small(
    "append p0 0 0 1; append p0 1 0 1",
    "append p1 0 0 1; retain; retain",
    setup="append p9 0 0 1",
    retention_bytes="0",
)
_FORGOTTEN = (
    ("d0", "commit 2.1 b2"),  # d0 has appended 1.1, and is about to append behind it
    ("d1", ""),  # d1 has appended 2.1; it expires, and is deleted
    ("d0", ""),  # d0 gives its name to other records
)
_LATE_MERGE = small(
    "merge",
    "reseal 1; compact",
    setup="append p9 0 0 1; append p9 1 0 1; append p9 2 0 1; append p9 3 0 1; append p9 4 0 1; append p9 5 0 1",
    cleanup_policy="compact",
    segment_merge_min_files="2",
)
_MERGED_LATE = (
    ("d0", "commit 0-6.1 b2"),  # d0 is about to name a merge of all appends
    ("d1", ""),  # a rule removes records of all but the last
    ("d0", ""),
)
_REMOTE = {
    "cleanup_policy": "compact",
    "remote_storage_enable": "true",
    "local_retention_bytes": "-1",
    "min_cleanable_dirty_ratio": "0",
    "segment_bytes": "1",
}
_ALL_REMOTE = "; ".join(f"append p9 {number} 0 1" for number in range(6)) + "; tier"
_BOTH_COMPACT = small("compact", "compact", setup=_ALL_REMOTE, **_REMOTE)
_REMOVED_LATE = (
    ("d0", "commit table remote"),  # d0 is about to replace the segments from which records leave
    ("d1", ""),  # d1 replaces them
    ("d0", ""),
)
_VACUUMED = replace(small("compact", "vacuum_at_once", setup=_ALL_REMOTE, **_REMOTE), tick_ms=1)
_VACUUMED_EARLY = (
    ("d0", "commit table remote"),  # d0 is about to list the segments that it has made
    ("d1", ""),
    ("d0", ""),
)
_LATE_MERGE_OF_ERASED = replace(
    small(
        "merge",
        "erase 0 now",
        setup="; ".join(f"append p9 {number} 0 1" for number in range(6)),
        segment_merge_min_files="2",
    ),
    tags=frozenset({"erase"}),
)
_ERASED_LATE = (
    ("d0", "commit 0-6.1 b2"),  # d0 is about to name a merge of all appends
    ("d1", ""),  # an erasure rewrites some of them
    ("d0", ""),
)
_UNSEEN = small(
    "replicate",
    "unfence 3; replicate",
    "append_leader 0 0 1 leader",
    setup="append p9 0 0 1; fence_by_hand 3",
    brokers=3,
    copies=3,
)
_JOINED_UNSEEN = (
    ("d0", "list 9) b2"),  # d0 has read the metadata: broker 3 is fenced
    ("d1", ""),  # broker 3 joins the ISR
    ("d2", ""),  # a record for the leader alone
    ("d0", ""),  # d0 copies it to broker 2 only
)
_REVIVED = small(
    "append p0 0 0 1",
    "elect 2",
    "replicate",
    "elect 1",
    "retain",
    "append p0 0 0 1",
    setup="append p9 0 0 1",
    brokers=3,
    copies=3,
)
_REVIVAL = (
    ("d0", "commit 1.1 b2"),  # 1.1 is on broker 3, which leads, and on 1
    ("d1", ""),
    ("d2", "create 2.epoch b1"),  # broker 3 joins epoch 2 of broker 2: 1.1 is dead there
    ("d3", ""),
    ("d4", "delete 1.1 b3"),
    ("d5", ""),  # broker 1 leads epoch 3 and has 1.1; broker 3 joins: it lives again, and is acknowledged
    ("d4", ""),
)

_PASSED = small(
    "replicate",
    "fence 2; append p0 0 0 1; tier; append p0 1 0 1",
    setup="append p9 0 0 1; tier",
    remote_storage_enable="true",
    segment_bytes="1",
)
_PASSED_MEANWHILE = (
    ("d0", "table load bremote"),  # d0 has read the metadata: broker 2 leads
    ("d1", ""),  # broker 1 leads, and tiers what broker 2 has not; its log goes on behind that
    ("d0", ""),
)

_FORGETFUL = {name.replace(".", "_"): value for name, value in EXPIRES_SOONER.items()}
_EXPANDING = replace(
    small(
        "append p0 0 0 1; append p0 1 0 1",
        "replicate",
        "append_leader 0 0 1 leader; replicate",
        setup="append p9 0 0 1; shrink 1 0; shrink 2 0",
    ),
    schedule="priorities",
    horizon=60,
)
_LEFT_BEHIND = replace(
    small("append_leader 0 0 1 leader; maintain 5000", setup="append p9 0 0 1"), fault_rate=0.03, horizon=60
)
_ON_ITS_WAY = replace(small("append_once 0 0 1 all", "append_once 0 0 1 all"), late_write_rate=0.2, horizon=40)
_LAST_MEMBER = replace(
    small("fence 1; register 2", setup="append p9 0 0 1"),
    events=((0, "replace", 2),),  # while broker 1 is in the ISR too; then it is fenced, and 2 the last member
    constant_roots=False,
)

_AHEAD = replace(
    small("append p1 0 0 1; append_again p0 0", setup="append p0 0 0 1", **_FORGETFUL), ahead_ms=(DAYS_APART_MS,)
)
_BEHIND = replace(
    small("append p0 0 0 1", "append p1 0 0 1", "append p2 0 0 1; append_again p0 0", **_FORGETFUL),
    ahead_ms=(-DAYS_APART_MS, 0, 0),
)

MUTATIONS: Sequence[Mutation] = (
    *(
        Mutation(
            name,
            what,
            variants.patched(tests.simulation.stores, place, variant),
            theme="base",
            shaped=_in_pages,
            first=first,
        )
        for name, what, place, variant, first in (
            (
                "one scan",
                "a listing is two scans: what one shows alone may have holes",
                "stable_listing",
                variants.first_scan,
                1238,
            ),
            (
                "all of the second scan",
                "what the second scan shows behind the end of the first is left out: it may have holes",
                "objects_together",
                variants.all_of_the_second,
                250,
            ),
            (
                "the first scan with its holes",
                "the second scan fills the holes of the first",
                "objects_together",
                variants.holes_and_all,
                1246,
            ),
            (
                "late high watermarks are claims",
                "a high watermark that came meanwhile does not say that what is listed is cut off",
                "objects_together",
                variants.never_late,
                10,
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
        "the directory id stands in the path",
        variants.patched(paths, "replica_path", variants.folder_without_incarnation),
        theme="wipe",
        first=830,
    ),
    Mutation(
        "end of epoch",
        "the end of epoch e is the start of the first entry above e, whether or not e is in the lineage",
        variants.patched(Lineage, "end_of", variants.end_of_known_epoch),
        first=784,
    ),
    Mutation(
        "live merged segments",
        "a merged segment is live only if it ends above the local start",
        variants.all_of(
            variants.patched(stratalog.partitions.listing, "is_live", variants.is_live),
            variants.patched(stratalog.partitions.known_log, "is_live", variants.is_live),
        ),
        theme="delete",
        shaped=_deleting,
        first=9,
    ),
    Mutation(
        "no chain",
        "the log is a chain from the local start",
        variants.without_chain,
        theme="reuse",
        shaped=_overlapping,
        first=4895,
    ),
    Mutation(
        "dead files above the high watermark",
        "a vacuum removes dead files only below the high watermark",
        variants.patched(stratalog.engine.upkeep.retention.tasks, "removable", variants.removable_also_above),
        directed=_REVIVED,
        script=_REVIVAL,
    ),
    Mutation(
        "append without looking again",
        "append 4: list the leader again, the file must be in the log",
        variants.patched(
            stratalog.engine.replication.append, "_append_to_leader", variants.append_without_looking_again
        ),
        shaped=_deleting,
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
        directed=_PASSED,
        script=_PASSED_MEANWHILE,
    ),
    Mutation(
        "a leader that goes on from its own end",
        "take over: the epoch that an election began for it goes on from the end of the remote log",
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
        variants.patched(stratalog.engine.replication.log_end, "_goes_on", variants.true),
        directed=_REMEMBERED,
        script=_FORGOTTEN,
    ),
    Mutation(
        "a log that is known for good",
        "a log that is remembered goes on from a listing that was made now",
        variants.patched(stratalog.partitions.replica, "known_again", variants.known_for_good),
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
        first=6,
    ),
    Mutation(
        "not there is not written",
        "a request without an answer may be on its way: its outcome is unknown, also when its file is not there",
        variants.patched(stratalog.engine.replication.append, "_commit", variants.not_there_is_not_written),
        directed=_ON_ITS_WAY,
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
            variants.patched(stratalog.engine.records.acknowledge, "_same_leader", variants.true),
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
        directed=_EXPANDING,
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
        variants.patched(stratalog.engine.upkeep.replication.proving, "is_current", variants.true),
        directed=_UNSEEN,
        script=_JOINED_UNSEEN,
    ),
    Mutation(
        "copies before .local",
        "starting over creates .local before the first copy",
        variants.register_later,
        directed=_STARTING_OVER,
    ),
    Mutation(
        "copies of names",
        "a copy is of the listed object",
        variants.patched(stratalog.engine.replication.sync, "_copy", variants.copy_of_the_name),
        directed=_REUSED_NAMES,
        script=_REUSE,
    ),
    Mutation(
        "one sync for both commits",
        "expand 3: list L after the commit of *adding*, and sync F to it",
        variants.patched(
            stratalog.engine.upkeep.replication.replicate, "_expand", variants.expand_without_second_sync
        ),
        directed=_EXPANDING,
        first=6,
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
        directed=_LEFT_BEHIND,
        first=13,
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
        "one producer and sequence stand for one set of records, and another set under them is refused",
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
        first=453,
    ),
    Mutation(
        "a driver's clock alone",
        "what is removed by time goes by the clocks of the driver and of the storage, where they agree",
        variants.patched(stratalog.engine.replication.append_file, "agreed_ms", variants.by_the_driver),
        directed=_AHEAD,
    ),
    Mutation(
        "times that the driver's clock alone says",
        "a time by which others remove is the later of the driver's and the storage's",
        variants.patched(stratalog.engine.replication.append_file, "stamp_ms", variants.by_the_driver),
        directed=_BEHIND,
    ),
    Mutation(
        "register keeps the last member",
        "another incarnation leaves every ISR, also as the last member",
        variants.patched(stratalog.engine.metadata.fold, "_without", variants.without_but_last),
        directed=_LAST_MEMBER,
    ),
    Mutation(
        "further reach wins over a rule",
        "at each offset the file of the greatest generation counts (partitions.removal)",
        variants.all_of(
            *(
                variants.patched(module, "chain_of", variants.chain_of_any_generation)
                for module in (stratalog.partitions.listing, stratalog.partitions.known_log)
            )
        ),
        directed=_LATE_MERGE,
        script=_MERGED_LATE,
        seeds=1,
    ),
    Mutation(
        "the leader follows a rule before the remote log",
        "only then the leader rewrites its own files, and followers copy them (tiering.removal)",
        variants.patched(RemoteTables, "carry_out", variants.nothing_remote),
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
        variants.patched(stratalog.tiering.delta_table, "decide_removed", variants.removed_whatever_is_listed),
        directed=_BOTH_COMPACT,
        script=_REMOVED_LATE,
        seeds=1,
    ),
    Mutation(
        "a vacuum of segments that a removal is about to list",
        "an uncommitted object is deleted only if its rule is recorded",
        variants.patched(stratalog.engine.upkeep.retention.vacuum, "find_litter", variants.litter_of_any_rule),
        directed=_VACUUMED,
        script=_VACUUMED_EARLY,
        seeds=1,
    ),
    Mutation(
        "an upload from before an erasure",
        "a commit leaves out partitions with a later erasure than the view of its plan (tiering.erasure)",
        variants.patched(Histories, "knows", variants.true),
        theme="erase tiered",
    ),
    Mutation(
        "an upload of files that an erasure names",
        "a plan leaves out files that an erasure of its own view names (tiering.erasure)",
        variants.patched(stratalog.engine.upkeep.tiering.tasks, "_unerased", variants.no_files),
        theme="erase tiered",
    ),
    Mutation(
        "the leader erases before the remote log",
        "only then the leader rewrites its own files, and followers copy them (tiering.erasure)",
        variants.patched(RemoteErasing, "carry_out", variants.nothing_refused),
        theme="erase tiered",
    ),
    Mutation(
        "an erasure that the table records whatever it lists",
        "the table names it only if no listed segment holds a named offset (tiering.erasure)",
        variants.patched(stratalog.tiering.delta_table, "decide_erased", variants.erased_whatever_is_listed),
        theme="erase tiered",
    ),
    Mutation(
        "objects that are left for readers",
        "objects that may hold erased records are deleted (tiering.erasure)",
        variants.patched(stratalog.engine.upkeep.erasing.remote_clean, "may_hold", variants.false),
        theme="erase tiered",
    ),
    Mutation(
        "any segment of a follower replaces the leader's",
        "a file of a greater generation replaces one of a lesser generation, and never the reverse",
        variants.patched(stratalog.engine.replication.sync, "_merged_over", variants.merged_over_any_generation),
        theme="compact",
        first=8,
    ),
    Mutation(
        "only the part of a file in the log is erased",
        "the whole file counts, not only the part in the log (partitions.erasure)",
        variants.all_of(
            variants.patched(stratalog.partitions.erasure, "_named", variants.named_in_the_log),
            variants.patched(stratalog.partitions.erasure, "_cut_by", lambda log, link: 0),
        ),
        directed=_LATE_MERGE_OF_ERASED,
        script=_ERASED_LATE,
        seeds=1,
    ),
    Mutation(
        "further reach wins over an erasure",
        "at each offset the file of the greatest generation counts (partitions.removal)",
        variants.all_of(
            *(
                variants.patched(module, "chain_of", variants.chain_of_any_generation)
                for module in (stratalog.partitions.listing, stratalog.partitions.known_log)
            )
        ),
        directed=_LATE_MERGE_OF_ERASED,
        script=_ERASED_LATE,
        seeds=1,
    ),
)
