"""Variants of the quorum without one step, each for a sentence of the protocol or of the product. The simulation
must find each of them.

A proof that cannot fail proves nothing. The variants are made by patching, without any switch in the product.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import stratalog.engine.quorum.checkpoints
import stratalog.engine.quorum.client
import stratalog.engine.quorum.contents
import stratalog.engine.quorum.damage
import stratalog.engine.quorum.log
import stratalog.engine.quorum.proof
import stratalog.engine.quorum.state
import stratalog.engine.quorum.upkeep
import stratalog.engine.quorum.voter
from stratalog.engine.quorum.claim import Claim
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.electorate import Electorate
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter
from tests.quorum import variants
from tests.quorum.configuration import FOR_EVER, Configuration, configuration_of, directed, with_readers
from tests.quorum.running import Run, run_configuration
from tests.quorum.schedule import Script
from tests.quorum.variants import all_of, everywhere, patched
from tests.simulation.running import Result


@dataclass(frozen=True, slots=True)
class Mutation:
    """One omitted step."""

    name: str
    what: str
    """The sentence that requires the step."""
    apply: Callable[[], AbstractContextManager[object]]
    theme: str | None = None
    """The theme of its runs; None selects all themes."""
    directed: Configuration | None = None
    """Runs of this configuration only, with schedules by seed."""
    shaped: Callable[[Configuration], Configuration] = lambda configuration: configuration
    """Changes the configuration of each run."""
    script: Sequence[tuple[str, str]] = ()
    """A hand-written schedule of the directed configuration."""
    first: int = 1
    """The first seed."""
    seeds: int = 60
    """The number of seeds, one of which must fail."""

    def configuration(self, seed: int) -> Configuration:
        """The configuration of a seed, as this mutation needs it."""
        if self.directed is not None:
            return self.shaped(replace(self.directed, seed=seed))
        # Snapshots are taken only as separate operations.
        made = replace(configuration_of(seed, self.theme), most_batches=50)
        return self.shaped(made)

    def run(self, seed: int) -> Result:
        """The run of a seed; patch the product before."""
        if self.script:
            return Run(self.configuration(seed)).run(Script(*self.script))
        return run_configuration(self.configuration(seed))


def _of_three(configuration: Configuration) -> Configuration:
    """Three voters, and events on them alone."""
    events = tuple(
        (at, what, target if what == "double" else 1 + target % 3) for at, what, target in configuration.events
    )
    return replace(configuration, voters=3, events=events)


def _damaged(configuration: Configuration) -> Configuration:
    """A voter lags, the log below is deleted, and a snapshot is damaged before the voter gets it."""
    rng = random.Random(configuration.seed)
    away = rng.randrange(60)
    events = ((away, "cut", 3), (rng.randrange(200), "damage", 1), (away + 300, "repair", 3))
    return replace(configuration, voters=3, slow=0, events=tuple(sorted(events)))


def _troubled(configuration: Configuration) -> Configuration:
    """Three voters, one or two of which often cannot be written, and many zombies."""
    troubled = replace(configuration, fault_rate=0.15, zombie_rate=0.1, crashes=3, claimant_attempts=0, slow=0)
    return _of_three(troubled)


def _at_random_times(configuration: Configuration) -> Configuration:
    """The configuration with its events in the same order, at other steps."""
    rng = random.Random(configuration.seed)
    times = sorted(rng.randrange(configuration.horizon) for _ in configuration.events)
    events = ((at, what, target) for at, (_, what, target) in zip(times, configuration.events, strict=True))
    return replace(configuration, events=tuple(events))


_SNAPSHOTS = directed(
    "commit; snapshot; commit; snapshot; commit", "commit; read; commit; read", schedule="bursts"
)
_WIPED = directed(
    "commit; commit; commit; commit",
    "read; read; commit",
    schedule="bursts",
    horizon=120,
    constant_roots=False,
    events=((0, "cut", 2), (1, "wipe", 1), (2, "repair", 2)),
)
_CHANGING = directed("alter 5; commit", "alter 1", "enrol 1; enrol 5", voters=4, others=1)
_TWO_CHANGES = (
    ("d2", ""),
    ("d1", "create 3.claim b1"),  # the driver has read, and does not see later records
    ("d0", "create 3.3 b2"),  # the change that adds voter 5 is on voter 1 alone
    ("", "cut 1"),
    # The change that removes voter 1 is on voters 2 and 3, two of the three remaining ones.
    ("d1", "create 3.4 b4"),
    ("d1", "refused"),
    ("d1", ""),
    ("", "cut 2"),
    ("", "cut 3"),
    ("", "repair 1"),
    ("d0", ""),  # on voters 1, 4 and 5: three of five
)
_ROTTING = directed(
    "commit; snapshot; commit; snapshot; commit; snapshot; commit; snapshot; open 0; read",
    "read; open 0; read; commit; snapshot",
    schedule="bursts",
    horizon=400,
    lag_ms=FOR_EVER,
    events=((0, "rot", 1), (1, "rot", 1), (2, "rot", 1)),
)

MUTATIONS: Sequence[Mutation] = (
    # ---------------------------------------------------------------------------- claim
    Mutation(
        "no root check",
        "after every listing, broker.json must hold the directory id that is registered",
        patched(Voter, "check_root", variants.nothing),
        directed=_WIPED,
        shaped=_at_random_times,
        first=73,
        seeds=800,
    ),
    Mutation(
        "claim: looked before",
        "claim: then list the claimed majority",
        all_of(
            patched(MetadataLog, "_survey", variants.survey_and_remember),
            patched(stratalog.engine.quorum.log, "read_names_of", variants.looks_from_before),
        ),
    ),
    Mutation(
        "claim: any log",
        "claim: the log with the greatest (epoch of the last file, log end)",
        everywhere(stratalog.engine.quorum.state.greatest_of, variants.first_of),
    ),
    Mutation(
        "claim: of two",
        "claim: one claimant an epoch, exclusive create decides",
        patched(Voter, "claim", variants.claim_of_anybody),
    ),
    Mutation(
        "snapshots are no log",
        "claim: snapshots counting as log up to their end",
        patched(stratalog.engine.quorum.voter, "last_of", variants.last_batch),
        theme="snapshots",
    ),
    Mutation(
        "offset before epoch",
        "claim: the greatest by the epoch first",
        everywhere(stratalog.engine.quorum.voter.position_of, variants.by_offset),
        theme="threads",
        shaped=_troubled,
        first=541,
    ),
    Mutation(
        "snapshot after the batch",
        "a batch is after the snapshot that it continues from",
        everywhere(stratalog.engine.quorum.voter.position_of, variants.snapshot_after_batch),
        directed=_SNAPSHOTS,
    ),
    # --------------------------------------------------------------------------- commit
    Mutation(
        "commit without looking again",
        "commit: then list it again",
        all_of(
            patched(Voter, "look", variants.look_of_memory),
            patched(Voter, "create", variants.create_and_believe),
        ),
    ),
    Mutation(
        "another batch after a failure",
        "commit: go on with the same batch, or give the claim up",
        patched(MetadataLog, "commit", variants.commit_and_keep_the_claim),
    ),
    Mutation(
        "claims do not count",
        "commit, read: no claim above its epoch",
        patched(LogState, "shown_by", variants.shown_whatever_is_claimed),
        first=15,
        seeds=600,
    ),
    Mutation(
        "the end alone counts",
        "commit, read: a voter counts when it has every file of the log",
        patched(LogState, "held_by", variants.held_by_its_end),
        first=69,
    ),
    Mutation(
        "landed batches are not recognised",
        "after an unknown outcome: a retry is recognised",
        patched(MetadataLog, "contains", variants.never),
    ),
    Mutation(
        "what was tried is repeated",
        "commit: a batch repeats what its log has under a name, not what its claimant wanted there",
        patched(MetadataLog, "commit", variants.commit_and_repeat_what_was_tried),
        first=7,
    ),
    # ----------------------------------------------------------------------------- read
    Mutation(
        "read without with_outcomes",
        "linearizable read: a majority shows that tail",
        patched(MetadataLog, "_is_committed", variants.always),
    ),
    Mutation(
        "a last batch that may be committed is passed over",
        "read alone: nothing beyond the answer was committed before the read began",
        patched(stratalog.engine.quorum.proof, "_may_be_committed", variants.never),
        shaped=with_readers,
        first=76,
    ),
    Mutation(
        "a claimant may have left it out",
        "read alone: of every epoch above the answer's a batch is seen whose lineage includes it",
        patched(stratalog.engine.quorum.proof, "_includes", variants.always),
        shaped=with_readers,
        first=556,
    ),
    Mutation(
        "a minority holds it",
        "read alone: a majority holds the answer",
        patched(stratalog.engine.quorum.proof, "_is_kept", variants.always),
        shaped=with_readers,
        first=15,
    ),
    Mutation(
        "one voter's snapshot is believed",
        "read alone: a snapshot of it is on one voter more than a minority",
        patched(stratalog.engine.quorum.proof, "_is_frozen", variants.frozen_by_anybody),
        first=48_117_504,
        seeds=1,
    ),
    Mutation(
        "hints are believed",
        "a hint is believed if the log continues from it",
        patched(stratalog.engine.quorum.contents, "_is_in_history", variants.always),
        theme="caches",
        first=423,
        seeds=2000,
    ),
    # --------------------------------------------------------------------------- upkeep
    Mutation(
        "snapshot of what is seen",
        "upkeep 1: settle the log",
        patched(MetadataLog, "committed_log", variants.settle_what_is_seen),
        theme="snapshots",
        first=56,
        seeds=300,
    ),
    Mutation(
        "the latest snapshot is deleted",
        "upkeep 4: never the latest snapshot",
        patched(stratalog.engine.quorum.upkeep, "doomed_on", variants.doomed_with_the_latest),
        theme="snapshots",
    ),
    Mutation(
        "the greatest claim is deleted",
        "upkeep 4: never the greatest claim",
        patched(stratalog.engine.quorum.upkeep, "doomed_on", variants.doomed_with_all_claims),
        theme="snapshots",
        first=500,
        seeds=300,
    ),
    Mutation(
        "deleted without a snapshot",
        "upkeep 4: a voter loses nothing that its own snapshot does not cover",
        all_of(
            patched(stratalog.engine.quorum.upkeep, "doomed_on", variants.doomed_wherever),
            patched(stratalog.engine.quorum.upkeep, "log_start_of", variants.latest_of_any),
        ),
        theme="snapshots",
        first=428,
        seeds=600,
    ),
    Mutation(
        "copies are not verified",
        "upkeep 3: read back and verify every copy",
        patched(stratalog.engine.quorum.upkeep, "verify_checkpoint", variants.nothing),
        directed=_ROTTING,
        shaped=_at_random_times,
    ),
    Mutation(
        "the log starts at the latest snapshot",
        "upkeep 4: at the second latest, until the latest is old",
        patched(stratalog.engine.quorum.upkeep, "log_start_of", variants.latest_of_all),
        directed=_ROTTING,
        shaped=_at_random_times,
    ),
    Mutation(
        "damage is copied",
        "a snapshot is verified before it is copied",
        everywhere(stratalog.engine.quorum.checkpoints.copy_checkpoint, variants.copy_as_it_is),
        shaped=_damaged,
        theme="snapshots",
        first=37,
    ),
    Mutation(
        "strangers are followed",
        "damage: nobody follows epochs that are far ahead",
        patched(stratalog.engine.quorum.damage, "FAR_AHEAD", 10**12),
        theme="strangers",
        first=8,
    ),
    # --------------------------------------------------------------------------- voters
    Mutation(
        "voters of old",
        "the latest VotersRecord of a log names the electorate of that log",
        patched(Electorate, "of", variants.electorate_of_old),
        theme="voters",
    ),
    Mutation(
        "a majority of either electorate",
        "a commit of a change counts when a majority of each of the two electorates shows it",
        lambda: variants.patch.object(stratalog.engine.quorum.log, "all", any, create=True),
        theme="voters",
        first=17,
        seeds=1000,
    ),
    Mutation(
        "a change on top of a change",
        "a change of voters continues from a committed state",
        all_of(
            patched(Claim, "check_change", variants.nothing),
            patched(MetadataClient, "change_voters", variants.change_without_commit),
            # Only the new electorate counts, as in Raft: if both counted, the fault would take three such changes.
            lambda: variants.patch.object(stratalog.engine.quorum.log, "all", variants.the_last, create=True),
        ),
        directed=_CHANGING,
        script=_TWO_CHANGES,
        seeds=1,
    ),
)
