"""Omitted checks of bytes, and of alarms (I8 to I10): the simulation must find each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import stratalog.engine.metadata.image
import stratalog.engine.records.acknowledge
import stratalog.engine.replication.damage
import stratalog.engine.replication.sync
import stratalog.engine.upkeep.healing.plan
import stratalog.engine.upkeep.replication.keep_short
import stratalog.engine.upkeep.replication.reassign
import stratalog.engine.upkeep.replication.replicate
import stratalog.engine.upkeep.retention.tasks
import stratalog.engine.upkeep.verification.audit
import stratalog.engine.upkeep.verification.content
import stratalog.engine.upkeep.verification.structure
import stratalog.partitions.lineage
import tests.simulation.damage
from stratalog.partitions.retention import removable
from tests.simulation import variants_of_bytes as variants
from tests.simulation.configuration import Configuration, small
from tests.simulation.mutation import Mutation
from tests.simulation.variants import all_of, patched, true


def _flipping(configuration: Configuration) -> Configuration:
    """Bits are flipped at some moments of every run."""
    rng = random.Random(f"flipping {configuration.seed}")
    flips = [(rng.randrange(configuration.horizon // 2), "flip", number) for number in range(4)]
    return replace(configuration, events=tuple(sorted((*configuration.events, *flips))))


_Patch = Callable[[], AbstractContextManager[object]]


def _unread(
    name: str,
    what: str,
    *patches: _Patch,
    theme: str | None = None,
    directed: Configuration | None = None,
    first: int = 1,
) -> Mutation:
    """Runs with flipped bits in which a step does not check bytes that it relies on."""
    return Mutation(name, what, all_of(*patches), theme=theme, directed=directed, shaped=_flipping, first=first)


def _untrue(name: str, what: str, *patches: _Patch, first: int = 1) -> Mutation:
    """Runs with checks and without flips, in which a check reports something false."""
    return Mutation(name, what, all_of(*patches), theme="checks", first=first)


_DROPPED_LOCALLY = replace(
    small(
        "shorten 0; shorten 0; replicate",
        "append p1 0 0 1; shorten 0; replicate",
        setup="append p9 0 0 1; append p9 1 0 1; append p9 2 0 1; tier; retain",
        segment_merge_min_files="2",
        segment_bytes="1",
        remote_storage_enable="true",
        local_retention_bytes="0",
    ),
    horizon=60,
)
_DROPPED_TIERED = replace(
    small(
        "retain; retain",
        "append p1 0 0 1; tier; retain",
        "replicate",
        setup="append p9 0 0 1; append p9 1 0 1; append p9 2 0 1; tier",
        segment_bytes="1",
        remote_storage_enable="true",
        local_retention_bytes="0",
        file_delete_delay_ms="0",
    ),
    horizon=60,
)
_DROPPED = "nothing local is dropped before its replacement was compared in place"

_HEALED_BESIDE = small("append p0 0 0 1", "heal", "append p2 0 0 1; replicate")
_TAKEN_AWAY = (
    ("d0", "commit 0.1 b1"),  # broker 2 leads; d0 is about to copy its first file
    ("flip", "2"),  # of that file
    ("d1", "delete 0.1 b2"),  # broker 1 leads, without the record: d1 is about to take the file away
    ("d0", ""),  # broker 1 gets it all the same
    ("d2", "create 2.2.hw b2"),  # d2 has copied the following records, and is about to report that all exist
    ("d1", "commit 0.1 b2"),  # it is away, and not yet copied again
    ("d2", ""),
)

MUTATIONS_OF_BYTES: Sequence[Mutation] = (
    _unread(
        "copies get their names unchecked",
        "a file is named in a log only after its bytes were compared with the checksum that its writer put down",
        patched(stratalog.engine.replication.sync, "check_copy", variants.unchecked),
    ),
    Mutation(
        "a heal removes a file that nothing covers",
        "no offset of a replica is missing while it is repaired: a concurrent sync relies on its listing",
        patched(stratalog.engine.upkeep.healing.plan, "Repair", variants.deleting_what_is_forgotten),
        directed=_HEALED_BESIDE,
        script=_TAKEN_AWAY,
        seeds=1,
    ),
    _unread(
        "dropped before it was read",
        _DROPPED,
        patched(stratalog.engine.replication.damage, "verify_bytes", variants.unchecked),
        patched(stratalog.engine.upkeep.retention.tasks, "verify_remote", variants.unchecked),
        directed=_DROPPED_TIERED,
    ),
    _unread(
        "shortened beyond what the remote tier covers",
        _DROPPED,
        patched(stratalog.engine.upkeep.replication.keep_short, "superseded", removable),
        patched(tests.simulation.damage, "released_counts", true),
        directed=_DROPPED_LOCALLY,
    ),
    _unread(
        "replicas go before the others were read",
        _DROPPED,
        patched(stratalog.engine.upkeep.replication.reassign, "_check_cover", variants.unchecked),
        patched(stratalog.engine.upkeep.replication.replicate, "check_joins", variants.nothing_wrong),
        theme="move",
        first=147,
    ),
    _unread(
        "registers without a checksum",
        "a flipped bit of a lineage is no other lineage",
        patched(stratalog.partitions.lineage, "unsealed", variants.line_of),
    ),
    _unread(
        "checks that overlook damage",
        "a check that misses damage it has read is a violation",
        patched(stratalog.engine.upkeep.verification.content, "check_segment", variants.nothing_bad),
        theme="checks",
    ),
    _untrue(
        "held against a leader that has not taken over",
        "all that a follower holds came from the leader once both have joined the view's epoch",
        patched(stratalog.engine.upkeep.verification.structure, "_known_of", variants.known_of_any_epoch),
        first=64,
    ),
    _untrue(
        "the leader is listed before its followers",
        "a leader holds all that was seen of a follower before",
        patched(stratalog.engine.upkeep.verification.structure, "sorted", variants.leader_first),
        patched(stratalog.engine.upkeep.verification.audit, "walk_topics", variants.nothing_walked),
        patched(stratalog.engine.upkeep.verification.audit, "_ROUNDS", 1),
        first=100,
    ),
    _untrue(
        "what was never committed is held against a new leader",
        "a leader that takes over gives up the end of the epochs before it, which nobody has acknowledged",
        patched(stratalog.engine.replication.damage, "claimed_high_watermark_of", variants.all_of_it),
        first=62,
    ),
    _untrue(
        "high watermarks on followers first",
        "append 7: the high watermark is on the leader before the followers get it",
        patched(stratalog.engine.records.acknowledge, "advance_high_watermark", variants.followers_first),
        first=364,
    ),
    Mutation(
        "committed below min.insync.replicas",
        "the high watermark does not advance while the ISR has fewer members than min.insync.replicas",
        patched(stratalog.engine.metadata.image.PartitionView, "has_min_isr", lambda view, least: True),
        first=15,
    ),
)
