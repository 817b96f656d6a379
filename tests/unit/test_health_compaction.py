"""Health of compacted topics: an overdue compaction is a finding, and the figures of Kafka's cleaner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.health.overdue import COMPACTION
from stratalog.engine.upkeep.replication import compact_remote
from stratalog.partitions.errors import RetriableError
from tests.unit.at_calls import dies_at
from tests.unit.cluster_harness import LiveCluster
from tests.unit.compact_remote_harness import Tiered
from tests.unit.test_upkeep_compact import DAY_MS, HOUR_MS, ROWS, Compacted, fill, stop_before_removal

WHAT = "compaction has been due for longer than health.upkeep.max.delay.ms"
FIGURES = "max-dirty-percent", "time-since-last-run-ms", "uncleanable-partitions-count"


def found(live: LiveCluster) -> list[dict[str, Any]]:
    return [row for row in live.cluster.health().rows if row["finding"] == COMPACTION]


def figures(live: LiveCluster) -> list[object]:
    totals = live.cluster.health().totals
    return [totals.get(name) for name in FIGURES]


def compacted(live: Compacted) -> None:
    live.cluster.compact().raise_for_failures()


def more(live: Compacted) -> None:
    fill(live, [("a", "9")])


LATE: dict[str, tuple[dict[str, str], list[Callable[[Compacted], None]], bool]] = {
    "dirty enough": ({}, [], True),
    "compacted": ({}, [compacted], False),
    "compacted, and a little dirty": ({}, [compacted, more, more], False),
    "compacted, and a little dirty, past the greatest lag": (
        {"max_compaction_lag_ms": str(HOUR_MS)},
        [compacted, more, more],
        True,
    ),
    "with nothing but the last file dirty": ({"max_compaction_lag_ms": "1"}, [compacted], False),
    "younger than the least lag": ({"min_compaction_lag_ms": str(DAY_MS)}, [], False),
    "in an active segment": ({"segment_bytes": str(2**30)}, [], False),
    "protected": ({}, [lambda live: live.cluster.topics.protect("t", days=1)], False),
    "not compacted by its policy": ({"cleanup_policy": "delete"}, [], False),
}


@pytest.mark.parametrize("name", LATE)
def test_a_compaction_is_late_some_time_after_it_was_due(tmp_path: Path, name: str) -> None:
    configs, steps, late = LATE[name]
    live = Compacted(tmp_path, **configs)
    fill(live)
    for step in steps:
        step(live)
    live.clock.sleep(2 * HOUR_MS / 1000 - 2)
    assert not found(live) or name == "dirty enough"
    live.clock.sleep(10)
    assert [row["what"] for row in found(live)] == [WHAT] * late
    if late:
        assert "compact --topics t" in found(live)[0]["do"]
        live.cluster.compact().raise_for_failures()
        assert found(live) == []


def test_records_that_came_lately_make_no_compaction_late(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live, ROWS[:1])
    live.clock.sleep(2 * HOUR_MS / 1000)
    fill(live)
    assert found(live) == []
    assert figures(live)[0] == 100


def test_an_unfinished_compaction_is_late(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live)
    stop_before_removal(live)
    at_ms = live.clock.now_ms()
    assert found(live) == []
    live.clock.sleep(2 * HOUR_MS / 1000)
    (row,) = found(live)
    assert row["what"] == "the last compaction has not ended on all members of the ISR"
    assert at_ms // 1000 == live.cluster.image.views("t")[0].rules[-1].committed_ms // 1000
    compacted(live)
    assert found(live) == []


def test_the_figures_have_the_names_of_kafkas_cleaner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Compacted(tmp_path)
    assert figures(live) == [0, None, None], "nothing is known of runs before the first"
    fill(live)
    assert figures(live) == [100, None, None]
    with monkeypatch.context() as patch:

        def fail(work: object) -> None:
            raise RetriableError("no")

        patch.setattr("stratalog.engine.upkeep.replication.compact.compact_partition", fail)
        live.cluster.maintain(check=False)
    live.clock.sleep(7)
    assert figures(live) == [100, 7000, 1]
    live.clock.sleep(HOUR_MS / 1000)
    live.cluster.maintain(check=False)
    assert figures(live) == [0, 0, 0]


def test_health_knows_the_files_that_rules_have_made(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live)
    live.cluster.compact().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    rows = live.cluster.health().rows
    assert [row["finding"] for row in rows] == ["upkeep"], "no run of maintain is recorded"
    victim = live.followers()[0]
    live.store(victim).delete([live.log(victim).chain[2].file.object.name])
    assert "damaged-replicas" in [row["finding"] for row in live.cluster.health().rows]


def test_a_partition_that_cannot_be_examined_leaves_no_figure_that_is_too_good(tmp_path: Path) -> None:
    live = Compacted(tmp_path, on_disk=True)
    fill(live)
    live.cluster.compact().raise_for_failures()
    assert figures(live)[0] == 0
    with live.unreachable(live.leader()):
        assert figures(live)[0] is None


def tiered(live: Compacted) -> None:
    assert isinstance(live, Tiered)
    live.tier_all()


WHERE_TIERED: dict[str, tuple[dict[str, str], list[Callable[[Compacted], None]], list[str], object]] = {
    "nothing is in the remote tier": ({}, [], [], 0),
    "dirty there": ({}, [tiered], [WHAT], 100),
    "compacted": ({}, [tiered, compacted], [], 0),
    "compacted, and more, one of it in the remote tier": ({}, [tiered, compacted, more, more], [WHAT], 17),
    "compacted, and a little dirty": (
        {"min_cleanable_dirty_ratio": "0.9"},
        [tiered, compacted, more, more, tiered],
        [],
        29,
    ),
    "compacted, and dirty there": ({}, [tiered, compacted, more, more, tiered], [WHAT], 29),
    "dirty there, and on the brokers": (
        {"local_retention_bytes": "-1", "local_retention_ms": "-1"},
        [tiered],
        [WHAT],
        100,
    ),
    "younger than the least lag": ({"min_compaction_lag_ms": str(DAY_MS)}, [tiered], [], 100),
}


@pytest.mark.parametrize("name", WHERE_TIERED)
def test_a_compaction_of_both_tiers_is_late_some_time_after_its_records_were_tiered(
    tmp_path: Path, name: str
) -> None:
    configs, steps, what, percent = WHERE_TIERED[name]
    live = Tiered(tmp_path, **configs)
    fill(live)
    for step in steps:
        step(live)
    assert found(live) == [], "it is not due for long"
    assert figures(live)[0] == pytest.approx(percent, abs=1)
    live.clock.sleep(2 * HOUR_MS / 1000 + 10)
    assert [row["what"] for row in found(live)] == what
    live.cluster.compact().raise_for_failures()
    assert found(live) == []


def test_a_compaction_that_the_remote_log_does_not_follow_is_late(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    fill(live)
    tiered(live)
    with dies_at(compact_remote, "remove_remotely"):
        live.cluster.compact()
    live.clock.sleep(2 * HOUR_MS / 1000 + 10)
    assert [row["what"] for row in found(live)] == ["the last compaction has not ended on all members of the ISR"]


def test_without_the_remote_table_it_is_unknown_which_partitions_are_due(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    fill(live)
    tiered(live)
    (log,) = (live.remote / live.table().folder / "_delta_log").glob("*0.json")
    log.write_text("{")
    assert figures(live)[0] is None
