"""Maintain: the one job to schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Failure, Report
from stratalog.engine.upkeep.maintenance import maintain as maintaining
from stratalog.engine.upkeep.maintenance.maintain import STEPS
from stratalog.jobs.maintain import main as maintain_job
from stratalog.partitions.errors import InvalidCallError, NoMajorityError, SourceChangedError, StorageError
from stratalog.partitions.paths import MAINTENANCE, base_name
from stratalog.partitions.store import Store
from tests.unit.cluster_harness import LiveCluster, fence, the_failure
from tests.unit.jobs_harness import report as printed

HOUR_S = 3600


def outcomes(report: Report) -> dict[str, str]:
    return {str(row["step"]): str(row["outcome"]) for row in report.rows}


def done(report: Report) -> set[str]:
    return {step for step, outcome in outcomes(report).items() if outcome == "done"}


@pytest.mark.slow
def test_a_first_run_does_every_step_and_leaves_a_log_in_good_order(live: LiveCluster) -> None:
    live.tiered()
    live.append(["a"], acks="leader")
    live.append(["b"], acks="leader")
    first = live.cluster.maintain().raise_for_failures()
    assert list(outcomes(first)) == list(STEPS)
    assert done(first) == {*STEPS}
    assert live.read() == {0: ["a", "b"]}
    assert live.isr() == {1, 2, 3}
    assert len(live.in_remote()) > 1
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_step_is_not_due_before_its_interval_is_over(live: LiveCluster) -> None:
    live.topic()
    live.cluster.maintain()
    again = live.driver().maintain()
    assert done(again) == {"replicate", "tier"}
    waits = {row["step"]: row["due_in_s"] for row in again.rows}
    assert (waits["merge"], waits["vacuum"], waits["scrub"]) == (300, 24 * HOUR_S, 7 * 24 * HOUR_S)
    live.clock.advance_ms(300_000)
    assert done(live.cluster.maintain()) == {*STEPS} - {"vacuum", "scrub"}
    live.clock.advance_ms(7 * 24 * HOUR_S * 1000)
    assert done(live.cluster.maintain()) == {*STEPS}


def test_a_dry_run_says_what_is_due_and_changes_nothing(live: LiveCluster) -> None:
    live.tiered()
    live.append(["a"], acks="leader")
    with live.unchanged():
        plan = live.cluster.maintain(dry_run=True)
    assert outcomes(plan) == {step: "not due" if step in {"elect", "compact"} else "due" for step in STEPS}
    assert {row["items"] for row in plan.rows if row["step"] in {"replicate", "merge", "tier", "scrub"}} == {1}
    live.cluster.maintain()
    with live.unchanged():
        assert outcomes(live.cluster.maintain(dry_run=True))["merge"] == "not due"


def test_steps_can_be_chosen_and_left_out(live: LiveCluster) -> None:
    assert list(outcomes(live.cluster.maintain(only=["tier", "replicate"]))) == ["replicate", "tier"]
    assert "scrub" not in outcomes(live.cluster.maintain(exclude="scrub"))
    with pytest.raises(
        InvalidCallError, match="'shrink' is not a step of maintain; the steps are replicate, elect"
    ):
        live.cluster.maintain(only=["shrink"])


@pytest.mark.parametrize("budget", [{"budget_s": 90}, {"budget_bytes": 1}, {"budget_requests": 1}], ids=str)
def test_a_run_that_is_cut_off_leaves_the_rest_to_the_next_one(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch, budget: dict[str, int]
) -> None:
    """Each run includes at least a piece of replicate and of one other step. Steps that were not reached come
    next, so that every step is reached: here a piece of work takes two minutes, and there is time for one piece.
    """
    live.topic(partitions=3)
    for partition in range(3):
        live.append({partition: ["a"]})  # type: ignore[arg-type]

    def slow(step: Callable[..., Report]) -> Callable[..., Report]:
        def run(*args: object, **kwargs: object) -> Report:
            live.clock.advance_ms(120_000)
            return step(*args, **kwargs)

        return run

    for name in ("replicate", "merge", "retain", "vacuum"):
        monkeypatch.setattr(maintaining, name, slow(getattr(maintaining, name)))
    began: list[str] = []
    for _ in range(20):
        found = live.cluster.maintain(**budget, exclude=["snapshot", "scrub", "elect"]).raise_for_failures()
        others = [row for row in found.rows if row["step"] != "replicate" and row["requests"]]
        assert len(others) <= 1
        began += [str(row["step"]) for row in others]
        if set(outcomes(found).values()) <= {"done", "not due"}:
            break
    else:
        pytest.fail(f"never done: {found}")
    assert {"merge", "retain", "vacuum"} == {*began}
    assert began[:3] == ["merge", "retain", "vacuum"]


def test_a_budget_of_nothing_is_refused(live: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="a budget must be more than 0 requests, not 0"):
        live.cluster.maintain(budget_requests=0)


def test_a_step_that_fails_stops_no_other_and_is_retried_when_it_is_due(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> Report:
        raise StorageError("the bucket is away")

    live.topic()
    monkeypatch.setattr("stratalog.engine.upkeep.maintenance.maintain.merge", away)
    found = live.cluster.maintain(check=False)
    assert outcomes(found) == {step: "failed" if step == "merge" else "done" for step in STEPS}
    assert the_failure(found) == "merge: KAFKA_STORAGE_ERROR: the bucket is away"
    monkeypatch.undo()
    assert outcomes(live.cluster.maintain())["merge"] == "not due"
    live.clock.advance_ms(300_000)
    assert outcomes(live.cluster.maintain())["merge"] == "done"


@pytest.mark.slow
def test_a_broker_that_comes_back_is_replicated_to_and_leads_what_it_preferably_leads(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True, voters=(3,))
    live.topic()
    preferred = live.leader()
    live.append(["a"])
    with live.unreachable(preferred):
        assert not live.cluster.maintain(check=False).ok
        assert live.leader() != preferred
    live.clock.advance_ms(HOUR_S * 1000)
    live.cluster.maintain()
    assert live.isr() == {1, 2, 3}
    live.clock.advance_ms(HOUR_S * 1000)
    live.cluster.maintain()
    assert live.leader() == preferred


def test_a_preferred_leader_that_is_away_is_no_failure(live: LiveCluster) -> None:
    live.topic()
    fence(live, live.leader())
    live.cluster.maintain(only="elect").raise_for_failures()
    live.cluster.topics.alter_configs(None, {"auto.leader.rebalance.enable": "false"})
    assert outcomes(live.cluster.maintain(only="elect")) == {"elect": "switched off"}


# ------------------------------------------------------------------------------------ the scrub


def test_a_scrub_finds_and_heals_a_flipped_bit(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    live.append(["a" * 1000])
    (name,) = live.data(2)
    path = live.root(2) / live.replica(2).path(base_name(name))
    whole = path.read_bytes()
    path.write_bytes(whole[:600] + bytes([whole[600] ^ 1]) + whole[601:])
    found = live.cluster.maintain()
    assert outcomes(found)["scrub"] == "done"
    assert path.read_bytes() == whole
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_scrub_is_bounded_and_goes_round(live: LiveCluster) -> None:
    """The budget is used up by any byte, so each run reads one partition, and reads each partition once before any
    partition a second time.
    """
    live.topic(partitions=5)
    live.append({p: [str(p)] for p in range(5)})  # type: ignore[arg-type]
    live.cluster.topics.alter_configs(None, {"scrub.max.bytes": "1"})
    read: Counter[object] = Counter()
    for _ in range(5):
        plan = live.cluster.maintain(only="scrub", due=True, dry_run=True)
        before = plan.rows[0]["items"]
        live.cluster.maintain(only="scrub", due=True)
        after = live.cluster.maintain(only="scrub", due=True, dry_run=True).rows[0]["items"]
        read[int(before or 0) - int(after or 0)] += 1
    assert read == {1: 5}
    assert outcomes(live.cluster.maintain(only="scrub", due=True)) == {"scrub": "not due"}


@pytest.mark.parametrize("step", ["merge", "tier", "retain", "snapshot", "vacuum", "scrub", "replicate", "elect"])
def test_a_step_that_is_named_is_done_now_and_not_only_where_it_is_due(live: LiveCluster, step: str) -> None:
    live.tiered()
    live.fill("abc")
    live.cluster.maintain()
    live.cluster.maintain()
    assert live.cluster.maintain(only=step).rows[0]["outcome"] == "done"
    plan = live.cluster.maintain(only=step, dry_run=True).rows[0]
    # All preferred replicas already lead.
    assert plan["outcome"] == ("not due" if step in {"elect", "compact"} else "due")


# ------------------------------------------------------------------------- what is remembered


def test_every_step_is_due_if_the_stored_state_is_lost(live: LiveCluster) -> None:
    """Without the stored state, everything is due."""
    live.topic()
    live.cluster.maintain()

    def kept(store: Store) -> list[str]:
        return [one.name for one in store.list("") if f"/{MAINTENANCE}/" in one.name]

    for store in live.cluster.stores.values():
        assert 1 <= len(kept(store)) <= 2
        store.delete(kept(store))
    assert done(live.cluster.maintain()) == {*STEPS}
    live.cluster.vacuum().raise_for_failures()
    assert all(map(kept, live.cluster.stores.values()))


# ---------------------------------------------------------------------------------- the job


def test_the_job_takes_its_limits_and_runs_the_steps_that_are_not_excluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    live.append(["a"])
    at = ["--cluster", str(live.file), "--json"]
    with live.unchanged():
        assert maintain_job([*at, "--dry-run"]) == 0
        assert maintain_job([*at, "--only", "shrink"]) == 2
        assert maintain_job([*at, "--every", "5s", "--once"]) == 2
        assert maintain_job([*at, "--budget-bytes", "0"]) == 2
        assert maintain_job([*at, "--budget-requests", "many"]) == 2
    capsys.readouterr()
    limits = ["--budget-bytes", "1GiB", "--budget-requests", "5000"]
    assert maintain_job([*at, "--once", "--exclude", "scrub, vacuum", "--budget", "5m", *limits]) == 0
    assert printed(capsys)["totals"] == {"steps": "replicate elect merge compact tier retain snapshot"}


def test_a_scrub_that_ends_early_reports_what_it_has_repaired(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.topic(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    pieces = [Report("heal", [], [Failure("t-0", "LOG_GAP", "no good copy")])]

    def heal(*_: object, **__: object) -> Report:
        if not pieces:
            raise NoMajorityError("no majority of the voters answers")
        return pieces.pop()

    monkeypatch.setattr(maintaining, "heal", heal)
    report = live.cluster.maintain(only="scrub", budget_s=1000, check=False)
    assert [(one.item, one.code) for one in report.failures] == [
        ("t-0", "LOG_GAP"),
        ("scrub", NoMajorityError.code),
    ]


def test_a_failure_stays_while_other_runs_disturb_the_next_attempts(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.topic(partitions=2)
    failing = [Failure("t-0", "STORAGE_ERROR", "no answer"), Failure("t-1", "STORAGE_ERROR", "no answer")]
    monkeypatch.setattr(maintaining, "merge", lambda *_, **__: Report("merge", (), failing))
    assert not live.cluster.maintain(only="merge", check=False).ok
    failing[:] = [Failure("t-0", SourceChangedError.code, "a file is gone")]
    live.cluster.maintain(only="merge").raise_for_failures()
    (finding,) = [one for one in live.driver().health().findings if one.kind == "upkeep-failing"]
    assert "t-0: STORAGE_ERROR: no answer" in finding.what
    assert "more" not in finding.what
    failing.clear()
    live.cluster.maintain(only="merge").raise_for_failures()
    assert not any(one.kind == "upkeep-failing" for one in live.driver().health().findings)
