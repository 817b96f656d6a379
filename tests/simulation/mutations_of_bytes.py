"""What vouches for bytes, and what makes alarms true, left out (I8 to I10): the simulation must find each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import engine.metadata.image
import engine.operations.replicas.reassign
import engine.operations.retention.tasks
import engine.operations.verification.audit
import engine.operations.verification.content
import engine.operations.verification.structure
import engine.replication.sync
import partitions.lineage
from tests.simulation import variants_of_bytes as variants
from tests.simulation.configuration import Configuration
from tests.simulation.mutations import Mutation
from tests.simulation.variants import all_of, patched


def _flipping(configuration: Configuration) -> Configuration:
    """Bits are flipped at some moments of every run."""
    rng = random.Random(f"flipping {configuration.seed}")
    flips = [(rng.randrange(configuration.horizon // 2), "flip", number) for number in range(4)]
    return replace(configuration, events=tuple(sorted((*configuration.events, *flips))))


MUTATIONS_OF_BYTES: Sequence[Mutation] = (
    Mutation(
        "copies get their names unchecked",
        "a file is named in a log only after its bytes were compared with the checksum that its writer put down",
        patched(engine.replication.sync, "check_copy", variants.unchecked),
        shaped=_flipping,
    ),
    Mutation(
        "dropped before it was read",
        "nothing local is dropped before what stands for it was compared where it lies",
        all_of(
            patched(engine.operations.retention.tasks, "verify_bytes", variants.unchecked),
            patched(engine.operations.retention.tasks, "verify_remote", variants.unchecked),
        ),
        theme="tier",
        shaped=_flipping,
    ),
    Mutation(
        "replicas go before the others were read",
        "nothing local is dropped before what stands for it was compared where it lies",
        patched(engine.operations.replicas.reassign, "_check_stand", variants.unchecked),
        theme="move",
        shaped=_flipping,
    ),
    Mutation(
        "registers without a checksum",
        "a flipped bit of a lineage is no other lineage",
        patched(partitions.lineage, "unsealed", variants.line_of),
        shaped=_flipping,
    ),
    Mutation(
        "checks that overlook damage",
        "a check that misses damage it has read is a violation",
        patched(engine.operations.verification.content, "check_segment", variants.nothing_bad),
        theme="checks",
        shaped=_flipping,
    ),
    Mutation(
        "held against a leader that has not taken over",
        "all that a follower holds came from the leader once both have joined the view's epoch",
        patched(engine.operations.verification.structure, "_known_of", variants.known_of_any_epoch),
        theme="checks",
    ),
    Mutation(
        "the leader is listed before its followers",
        "a leader holds all that was seen of a follower before",
        all_of(
            patched(engine.operations.verification.structure, "sorted", variants.leader_first),
            patched(engine.operations.verification.audit, "_ROUNDS", 1),
        ),
        theme="checks",
    ),
    Mutation(
        "committed below min.insync.replicas",
        "the high watermark does not advance while the ISR has fewer members than min.insync.replicas",
        patched(engine.metadata.image.PartitionView, "has_min_isr", lambda view, least: True),
    ),
)
