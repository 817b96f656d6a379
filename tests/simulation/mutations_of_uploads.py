"""Steps left out of uploads that write a segment straight from several files of the log: ``merge`` leaves these to
``tier``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import stratalog.tiering.plan
from stratalog.partitions.rewrites.merge import Run, sealed_runs
from tests.simulation.configuration import LEFT_TO_TIER, Configuration, Operation
from tests.simulation.mutation import Mutation
from tests.simulation.variants import patched


def _left_to_tier(configuration: Configuration) -> Configuration:
    """Each segment has up to three files, and is read from the remote tier soon."""
    tiered = {"remote.storage.enable": "true", "local.retention.bytes": "0"}
    configs = {**dict(configuration.shape.topic_configs), **LEFT_TO_TIER, **tiered}
    slots, rng = [list(slot) for slot in configuration.operations], random.Random(f"left {configuration.seed}")
    for _ in range(3):
        slot = rng.choice(slots)
        at = rng.randint(0, len(slot))
        slot[at:at] = [Operation("tier"), Operation("read")]
    shape = replace(configuration.shape, topic_configs=tuple(configs.items()))
    return replace(configuration, shape=shape, operations=tuple(map(tuple, slots)))


def _without_outcomes(*given: Any, **more: Any) -> list[Run]:
    """No run knows which of its files are of aborted transactions."""
    return [replace(run, aborted=frozenset()) for run in sealed_runs(*given, **more)]


def _with_a_gap(*given: Any, **more: Any) -> list[Run]:
    """A run of more than two files lacks the second one."""
    runs = sealed_runs(*given, **more)
    return [replace(run, links=(run.links[0], *run.links[2:])) if len(run.links) > 2 else run for run in runs]


MUTATIONS_OF_UPLOADS: Sequence[Mutation] = (
    Mutation(
        "a segment of files whose outcomes are unknown",
        "a segment that is written from appended files marks what was aborted (partitions.rewrites.merge)",
        patched(stratalog.tiering.plan, "sealed_runs", _without_outcomes),
        theme="transactions",
        shaped=_left_to_tier,
        first=14,
    ),
    Mutation(
        "a segment that leaves out a file",
        "a segment is written from all files of its run, which are neighbours in the log (rewrites.merge)",
        patched(stratalog.tiering.plan, "sealed_runs", _with_a_gap),
        theme="tier",
        shaped=_left_to_tier,
        first=3,
    ),
)
