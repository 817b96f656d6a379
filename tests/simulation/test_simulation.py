"""Some hundred seeds of the simulation: without violations, of some weight, and the same in every run."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from stratalog.engine.state.internal_topics import TRANSACTIONS_TOPIC
from stratalog.engine.upkeep.retention import vacuum
from stratalog.partitions.errors import OutcomeUnknownError
from stratalog.partitions.paths import DataName
from stratalog.tiering.remote_objects import TopicLitter, Why, find_litter
from tests.depth import at_depth
from tests.simulation.configuration import Configuration, configuration_of, small
from tests.simulation.ending import LoneDriver
from tests.simulation.hashing import outputs_by_order_of_hashes
from tests.simulation.many import run_some
from tests.simulation.mirroring import with_mirrors
from tests.simulation.running import Run, replay, run_configuration, run_seed
from tests.simulation.scheduler import Decision, Driver, Verdict, Violation
from tests.simulation.strategies import Seeded
from tests.simulation.trace import text_of_trace
from tests.simulation.transacting import TransactionOracle

SEEDS = 500
PARTS = 25


def counts_of_clean_runs(configurations: Iterable[Configuration]) -> Counter[str]:
    """The events of these runs, in which every invariant holds."""
    counts: Counter[str] = Counter()
    for configuration in configurations:
        result = run_configuration(configuration)
        assert result.violation is None, f"seed {configuration.seed}: {result.violation}"
        counts += result.counts
    return counts


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.slow
def test_every_invariant_holds_after_every_step(part: int) -> None:
    """Protocol section 6, I1 to I10. Also checks that the run has tested something."""
    each = SEEDS // PARTS
    summary = run_some(range(1 + part * each, 1 + (part + 1) * each))
    assert not summary.failures, f"python -m tests.simulation --seed {summary.failures[0][0]}: {summary.failures}"
    counts = summary.counts
    expected = {"acknowledged": 2, "elections": 0.1, "expansions": 0.1, "shrinks": 0.1, "commits": 1, "steps": 100}
    for what, for_each in expected.items():
        assert counts[what] >= for_each * each, f"{what}: {counts[what]} in {each} seeds: {counts}"
    assert counts["fault: refused"] > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.slow
def test_a_mirror_has_what_its_source_has_whatever_happens(part: int) -> None:
    """Several mirrors, which die, pause and are late: an offset holds the source's record, or nothing yet."""
    each = 8
    seeds = range(1 + part * each, 1 + (part + 1) * each)
    counts = counts_of_clean_runs(with_mirrors(configuration_of(seed)) for seed in seeds)
    assert counts["mirrored: acknowledged"] >= each


@pytest.mark.slow
def test_replicas_that_were_restored_continue_from_the_end_of_the_remote_log() -> None:
    """I14: no offset is acknowledged with other records while the remote log holds the first."""
    counts = counts_of_clean_runs(
        configuration_of(seed, "behind") for seed in range(1, 1 + at_depth(test=12, nightly=1000))
    )
    assert counts["put back behind the remote log"] >= at_depth(test=2, nightly=5)


@pytest.mark.slow
def test_leaders_that_answer_reads_and_refuse_creates_resign() -> None:
    """Roots become full, and empty again, in any order with all other events. Every invariant holds."""

    def filled(seed: int) -> Configuration:
        configuration = configuration_of(seed, "base")
        rng = random.Random(f"full {seed}")
        brokers = rng.choices(range(1, configuration.shape.brokers + 1), k=3)
        fills = [(rng.randrange(configuration.horizon // 2), "fill", broker) for broker in brokers]
        mends = [(at + rng.choice((20, 60, 200)), "mend", broker) for at, _, broker in fills]
        events = tuple(sorted((*configuration.events, *fills, *mends)))
        return replace(configuration, events=events)

    counts = counts_of_clean_runs(map(filled, range(1, 1 + at_depth(test=15, nightly=1000))))
    assert counts["full leaders resigned"] > 0


@pytest.mark.slow
def test_brokers_that_were_restored_with_their_metadata_do_not_take_an_earlier_upload_for_theirs() -> None:
    """I14; uncommitted objects do not count as others of the same name."""
    counts = counts_of_clean_runs(
        configuration_of(seed, "earlier") for seed in range(1, 1 + at_depth(test=20, nightly=1000))
    )
    assert counts["put back to an earlier moment"] >= 20
    assert counts["put back behind the remote log, with the metadata"] >= 3


@pytest.mark.slow
def test_logs_that_are_lost_begin_again_where_they_were_known_to_end() -> None:
    """I15: no offset is acknowledged with other records while the metadata know of the first."""
    counts = counts_of_clean_runs(
        configuration_of(seed, "lost") for seed in range(1, 1 + at_depth(test=20, nightly=1000))
    )
    assert counts["lost, and known to have been written to"] >= at_depth(test=2, nightly=5)


@pytest.mark.slow
def test_keys_leave_snapshots_and_do_not_come_back() -> None:
    """S1 to S3 of ``stratalog.snapshots.erasure``."""
    counts = counts_of_clean_runs(
        configuration_of(seed, "erase snapshots") for seed in range(21, 21 + at_depth(test=15, nightly=1000))
    )
    assert counts["snapshots"] >= 10
    assert counts["erased"] >= 2


@pytest.mark.slow
def test_keys_leave_published_snapshots_and_rows_that_another_program_has_rewritten_stay() -> None:
    """S3 and S4 of ``stratalog.snapshots.erasure``: P1 to P4 of ``published``."""
    counts = counts_of_clean_runs(
        configuration_of(seed, "published") for seed in range(1, 1 + at_depth(test=4, nightly=1000))
    )
    assert counts["published snapshots"] >= 5
    assert counts["rewritten tables"] >= 3
    assert counts["erased wholly"] >= 5


def test_all_kinds_of_runs_have_their_turn() -> None:
    configurations = [configuration_of(seed) for seed in range(1, SEEDS + 1)]
    themes = Counter(tag for configuration in configurations for tag in configuration.tags)
    assert set(themes) >= {
        "base",
        "delete",
        "reuse",
        "revive",
        "tier",
        "move",
        "topics",
        "wipe",
        "unclean",
        "checks",
    }
    assert min(themes.values()) >= 8
    actions = Counter(o.action for c in configurations for slot in c.operations for o in slot)
    assert min(actions.values()) >= 2
    assert {c.shape.brokers for c in configurations} == {2, 3, 4, 5}
    assert {c.shape.voters for c in configurations} == {1, 3}
    assert max(c.shape.partitions for c in configurations) == 8
    assert {len(c.operations) for c in configurations} == {2, 3, 4, 5, 6}
    assert sum(c.late_write_rate > 0 for c in configurations) >= SEEDS / 4
    assert sum(any(what == "flip" for _, what, _ in c.events) for c in configurations) >= SEEDS / 6


@pytest.mark.parametrize("seed", [3, 17, 40, 41])
@pytest.mark.slow
def test_a_seed_gives_the_same_trace_every_time(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.lines == second.lines
    assert first.digest() == second.digest()


@pytest.mark.nightly
def test_the_order_of_hashes_does_not_matter() -> None:
    """Neither the process nor its earlier runs matter: whole traces and all stored bytes, of runs of all kinds."""
    seeds = [3, 7, 17, 22, 40, 41]
    program = f"from tests.simulation.running import run_seed; print(*(run_seed(s).digest() for s in {seeds}))"
    here = " ".join(run_seed(seed).digest() for seed in reversed(seeds))
    assert outputs_by_order_of_hashes(program) == {" ".join(reversed(here.split())) + "\n"}


@pytest.mark.parametrize(("seed", "late"), [(9, True), (6, False)])
@pytest.mark.slow
def test_recorded_decisions_give_the_same_trace(seed: int, late: bool) -> None:
    """A decision for each step, also for a call that takes effect later."""
    configuration = configuration_of(seed)
    first = run_configuration(configuration)
    assert (first.counts["late effects"] > 0) == late
    assert replay(configuration, first.decisions).digest() == first.digest()


@pytest.mark.parametrize(
    ("order", "told", "stored"),
    [("d0~1 d0~1 d1 d1", ["unknown", False], b"d0"), ("d1 d1 d0~1 d0~1", ["unknown", True], b"d1")],
)
def test_a_call_takes_effect_after_its_error_and_under_its_condition_then(
    order: str, told: list[object], stored: bytes
) -> None:
    """The first creator has the name; and the caller continues in its turn, not with its call."""
    world, answers = Run(small()).world, list[object]()

    def create_two(driver: Driver) -> None:
        store = world.ports(driver).storage.stores[1]
        try:
            answers.append(store.create("first", driver.name.encode()))
        except OutcomeUnknownError:
            answers.append("unknown")
        store.create("second", b"")

    for name in ("d0", "d1"):
        world.scheduler.spawn(name, 0, create_two)
    for name, verdict in (
        ("d0", Verdict.GO),
        ("d0", Verdict.LATE),
        *((name, Verdict.GO) for name in order.split()),
    ):
        world.scheduler.take(Decision(name, verdict))
    assert answers == told
    assert world.roots[1].folders[""]["first"][1] == stored
    assert world.roots[1].get("second") is None
    world.scheduler.kill_all()


def test_a_trace_can_be_read() -> None:
    text = "\n".join(text_of_trace(run_configuration(small("append p0 0 0 1"))))
    assert "-- d0: append p0 0 0 1\n" in text
    assert re.search(r"d0 +commit +b2 +t-0 .* 0\.1 -> True\n", text)


TIERED = {"remote_storage_enable": "true", "segment_bytes": "1", "local_retention_bytes": "0"}


def also_what_waits(*args: Any, **more: Any) -> TopicLitter:
    """Litter including the objects that "anything else" spares: uploads that a commit may need."""
    found, objects = find_litter(*args, **more), args[0]
    listed = {segment.path for segment in args[1].all_segments()}
    return replace(found, litter=dict.fromkeys(objects.segments.keys() - listed, Why.SUPERSEDED))


@pytest.mark.parametrize(
    ("rule", "bad"),
    [(find_litter, range(1)), pytest.param(also_what_waits, range(5, 21), marks=pytest.mark.slow)],
)
def test_a_vacuum_at_any_moment_takes_nothing_that_a_tier_run_commits(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[..., TopicLitter], bad: range
) -> None:
    """A dead driver uploaded some objects, others are in flight; the vacuum deletes objects of any age. A
    different rule would be detected."""
    monkeypatch.setattr(vacuum, "find_litter", rule)
    setup = "append p9 0 0 1; append p9 1 0 1; tier_uncommitted; append p9 2 0 1"
    both = replace(small("tier", "tier", "vacuum_at_once; vacuum_at_once", setup=setup, **TIERED), tick_ms=1)
    runs = [run_configuration(replace(both, seed=seed, horizon=60)) for seed in range(20)]
    assert sum(run.violation is not None for run in runs) in bad


@pytest.mark.slow
def test_tiered_runs_leave_litter_for_a_vacuum_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncommitted uploads have boundaries that no later run has; otherwise the last check, that table and folder
    agree, would prove little."""
    found: Counter[str] = Counter()

    def counted(*args: Any, **more: Any) -> TopicLitter:
        litter = find_litter(*args, **more)
        found.update(litter.litter.values())
        return litter

    monkeypatch.setattr(vacuum, "find_litter", counted)
    for seed in range(1, 1 + at_depth(test=20, nightly=70)):
        assert run_configuration(configuration_of(seed, "tier")).violation is None
    assert found[Why.SUPERSEDED] >= at_depth(test=1, nightly=5)


def test_the_final_check_finds_surplus_and_missing_objects_in_the_remote_tier() -> None:
    run = Run(small("append p0 0 0 1; tier; vacuum", **TIERED))
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


def test_an_abandoned_log_of_decisions_is_no_violation() -> None:
    configuration = small("transact x0 0 commit 100000 0")
    sizes = (("num.partitions", "1"), ("replication.factor", "2"), ("min.isr", "1"))
    configs = tuple((f"transaction.state.log.{name}", size) for name, size in sizes)
    shape = replace(configuration.shape, cluster_configs=configs)
    run = Run(replace(configuration, shape=shape))
    assert run.run(Seeded(run.configuration)).violation is None
    world = run.world
    state = world.invariants.state(1, world.invariants.folder(1, (world.topic_id, 0)))
    world.abandon((world.oracle.image.topic_ids[TRANSACTIONS_TOPIC], 0))
    knows_no_decision = TransactionOracle(world.oracle)
    knows_no_decision.owner = world.transactions.owner
    knows_no_decision.check(state.log, state.contents, "on broker 1")
