"""Tiers generated from seeds: all returned records are true, all others are named, and a mirror gets
everything."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import pytest

from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.mirrored import TieredSource
from stratalog.bridges.mirror.source import SourceRange, SourceRead, SourceRecord
from stratalog.partitions.errors import StratalogError
from tests.bridges.kafka_tier_made import KEY, TOPIC, Made
from tests.depth import at_depth

SEEDS = at_depth(test=60, nightly=1000)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 400)


def same(rows: list[dict[str, object]], truth: dict[int, SourceRecord]) -> None:
    assert len({row["offset"] for row in rows}) == len(rows)
    for row in rows:
        one = truth[int(str(row["offset"]))]
        assert (row["key"], row["value"], row["leaderEpoch"]) == (one.key, one.value, one.leader_epoch)


@pytest.mark.sample(8)
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_a_read_returns_true_records_and_its_plan_names_the_offsets_that_are_unclear(
    level: str, block: int
) -> None:
    read = refused = 0
    for seed in range(block, SEEDS, 10):
        made = Made(seed)
        truth = made.records() if level == "read_uncommitted" else made.committed()
        tier = made.tier()
        if not made.segments:
            continue
        try:
            span = {"start": 0, "end": made.end, "isolation": level}
            plan = tier.plan(TOPIC, **span)  # type: ignore[arg-type]
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                rows = tier.read_arrow(TOPIC, fail_on_data_loss=False, **span).read_all().to_pylist()
        except StratalogError:
            assert made.damaged
            refused += 1
            continue
        same(rows, truth)
        unclear = {offset for one in plan.unclear for offset in range(one.start, one.end)}
        found = {row["offset"] for row in rows}
        assert truth.keys() - found <= unclear, seed
        assert found.isdisjoint(unclear)
        read += len(rows)
    assert read


def drained(reads: Iterable[SourceRead], end: int) -> tuple[dict[int, tuple[object, ...]], list[str]]:
    """The records up to ``end``, and the notes."""
    rows: dict[int, tuple[object, ...]] = {}
    notes: list[str] = []
    position = 0
    for read in reads:
        assert read.error is None
        notes += read.notes
        assert read.position >= position
        for row in read.records.to_pylist():
            assert row["offset"] >= position
            assert row["offset"] not in rows
            rows[row["offset"]] = (row["key"], row["value"], row["leader_epoch"])
        position = read.position
        if position >= end:
            break
    assert position >= end
    return rows, notes


@pytest.mark.sample(4)
@pytest.mark.parametrize("block", range(10))
def test_a_mirror_gets_every_committed_record_once_whatever_the_tier_is_like(block: int) -> None:
    from_tier = through = 0
    for seed in range(block, SEEDS, 10):
        made = Made(seed)
        truth = {at: (one.key, one.value, one.leader_epoch) for at, one in made.committed().items()}
        end = made.stable_end()
        if not end:
            continue
        source = TieredSource(made.tier(), made.brokers())
        rows, notes = drained(source.read({KEY: SourceRange(0, end)}), end)
        assert rows == truth, seed
        through += len(notes)
        found: dict[int, tuple[object, ...]] = {}
        for part in TieredSource(made.tier(), made.brokers()).parts(KEY, SourceRange(0, end)):
            try:
                mine, _ = drained(part.read(), part.end)
            except StratalogError:
                assert made.damaged
                continue
            assert mine == {at: one for at, one in truth.items() if part.start <= at < part.end}, seed
            assert found.keys().isdisjoint(mine)
            found |= mine
        from_tier += len(found)
    assert from_tier
    assert through
