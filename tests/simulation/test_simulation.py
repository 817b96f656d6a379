"""Some hundred seeds of the simulation: clean, of some weight, and the same in every run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from partitions.paths import DataName
from tests.simulation.configuration import configuration_of, small
from tests.simulation.ending import LoneDriver
from tests.simulation.many import run_some
from tests.simulation.running import Run, replay, run_configuration, run_seed
from tests.simulation.scheduler import Violation
from tests.simulation.strategies import Seeded
from tests.simulation.trace import text_of_trace

SEEDS = 500
PARTS = 10


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_every_invariant_holds_after_every_step(part: int) -> None:
    """Protocol section 6, I1 to I7; and the run has tested something."""
    each = SEEDS // PARTS
    summary = run_some(range(1 + part * each, 1 + (part + 1) * each))
    assert not summary.failures, f"python -m tests.simulation --seed {summary.failures[0][0]}: {summary.failures}"
    counts = summary.counts
    expected = {"acknowledged": 2, "elections": 0.1, "expansions": 0.1, "shrinks": 0.1, "commits": 1, "steps": 100}
    for what, for_each in expected.items():
        assert counts[what] >= for_each * each, f"{what}: {counts[what]} in {each} seeds: {counts}"
    assert counts["fault: refused"] > 0


def test_all_kinds_of_runs_have_their_turn() -> None:
    configurations = [configuration_of(seed) for seed in range(1, SEEDS + 1)]
    themes = Counter(tag for configuration in configurations for tag in configuration.tags)
    assert set(themes) >= {"base", "delete", "reuse", "revive", "tier", "move", "topics", "wipe", "unclean"}
    assert min(themes.values()) >= 10
    actions = Counter(o.action for c in configurations for slot in c.operations for o in slot)
    assert min(actions.values()) >= 3
    assert {c.shape.brokers for c in configurations} == {2, 3, 4, 5}
    assert {c.shape.voters for c in configurations} == {1, 3}
    assert max(c.shape.partitions for c in configurations) == 8
    assert {len(c.operations) for c in configurations} == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("seed", [3, 17, 40, 41])
def test_a_seed_gives_the_same_trace_every_time(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.lines == second.lines
    assert first.digest() == second.digest()


def test_the_order_of_hashes_does_not_matter() -> None:
    program = "from tests.simulation.running import run_seed; print(run_seed(22).digest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_recorded_decisions_give_the_same_trace() -> None:
    configuration = configuration_of(17)
    first = run_configuration(configuration)
    assert replay(configuration, first.decisions).digest() == first.digest()


def test_a_trace_can_be_read() -> None:
    text = "\n".join(text_of_trace(run_configuration(small("append p0 0 0 1"))))
    assert "-- d0: append p0 0 0 1\n" in text
    assert re.search(r"d0 +commit +b2 +t-0 .* 0\.1 -> True\n", text)


def test_what_the_remote_tier_has_too_much_or_too_little_in_the_end_is_found() -> None:
    tiered = {"remote_storage_enable": "true", "segment_bytes": "1", "local_retention_bytes": "0"}
    run = Run(small("append p0 0 0 1; tier; vacuum", **tiered))
    assert run.run(Seeded(run.configuration)).violation is None
    world = run.world
    path, *_ = world.tables[world.topic_id].live
    folder = f"t-{world.topic_id}"
    LoneDriver(world).check()
    world.remote.create(f"{folder}/0/{DataName(0, 1, 99)}", b"", 0)
    with pytest.raises(Violation, match="left behind in the remote tier"):
        LoneDriver(world).check()
    world.remote.delete(f"{folder}/0/{DataName(0, 1, 99)}")
    world.remote.delete(f"{folder}/{path}")
    with pytest.raises(Violation, match="which is not there"):
        LoneDriver(world).check()
