"""Erasures from published tables that end early, or run beside slow jobs, other erasures and elections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing import published as publishing
from stratalog.engine.upkeep.erasing import snapshot_run
from stratalog.engine.upkeep.snapshots import publish as publish_module
from stratalog.partitions.paths import parse_published_path
from stratalog.partitions.records import schema_of
from stratalog.tiering import snapshot_table as tables
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.unit.at_calls import dies_at, during
from tests.unit.erase_harness import KEY, OTHER, SECRET, stop_at, traces
from tests.unit.erase_snapshots_harness import LATER, NO_ANSWER, STATE, Published, published_topic
from tests.unit.faulty_store import WRITES, Faults
from tests.unit.snapshot_table_harness import data_files, folder, ours, state

live = published_topic

# -------------------------------------------------------------------------------------- crashes

STEPS = [
    (snapshot_run, "AddSnapshotErasures"),
    (erasing, "erase_partition"),
    (erasing._Erasing, "publish"),
    (publish_module, "write_latest"),
    (SnapshotTable, "commit"),
    (erasing, "clean"),
    (publishing, "has_keys"),
    (publishing._Cleaning, "clean"),
    (publishing._Cleaning, "_forget_history"),
    (SnapshotTable, "_delete_older"),
    (erasing._Erasing, "forget"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[step for _, step in STEPS])
@pytest.mark.parametrize("end", ["before", "after"])
@pytest.mark.slow  # up to three runs, and every byte is verified after two
def test_a_run_that_ends_at_any_step_is_finished_by_the_next(
    live: Published, owner: Any, step: str, end: str
) -> None:
    with dies_at(owner, step, after=end == "after"):
        live.erase(KEY)
    assert STATE.items() <= state(live).items(), "no reader misses a key of others"
    if live.replicas().view.erasures:
        assert live.erase().whole, "it needs no keys"
        live.check_gone()
    assert live.erase(KEY).whole
    live.check_gone()


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(1, 70, 4))
@pytest.mark.slow  # a cluster for each number
def test_a_driver_that_dies_at_any_write_leaves_a_whole_state(tmp_path: Path, number: int) -> None:
    faults = Faults()
    live = Published(tmp_path, through=faults.wrap).start()
    with faults.dies_at(number, *WRITES):
        live.erase(KEY)
    assert STATE.items() <= state(live).items()
    assert live.driver().erase("t", [KEY], check=False).whole
    live.check_gone()


# ---------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("held", ["write_latest", "commit"])
def test_a_slow_job_publishes_no_key_after_the_erasure(
    live: Published, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    """It has read the metadata, and perhaps written its file, before an erasure begins and ends."""
    live.put([(LATER, "y")])
    eraser = live.driver()
    owner = publish_module if held == "write_latest" else SnapshotTable
    during(monkeypatch, owner, held, lambda: eraser.erase("t", [KEY], check=False))
    live.cluster.snapshot("t", by_hand=True)
    assert state(live) == {**STATE, LATER: "y"}
    assert live.generation() == live.replicas().view.last_erasure
    assert live.erase(KEY).whole
    assert live.remote_traces(KEY, SECRET) == []


def test_a_slow_job_publishes_no_key_in_a_table_that_was_made_again(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new table lists nothing, but the metadata are read after it."""
    live.put([(LATER, "y")])
    eraser = live.driver()

    def erase_and_lose() -> None:
        eraser.erase("t", [KEY], check=False)
        for path in (folder(live) / "_delta_log").iterdir():
            path.unlink()
        topic = live.cluster.image.topic("t")
        ours(live).ensure(tables.published_schema(schema_of(topic.key_schema, topic.value_schema)))

    during(monkeypatch, SnapshotTable, "commit", erase_and_lose)
    live.cluster.snapshot("t", by_hand=True)
    assert ours(live).load().files == {}
    live.cluster.snapshot("t").raise_for_failures()
    assert state(live) == {**STATE, LATER: "y"}


def test_a_slow_job_that_has_read_the_metadata_loses_its_version(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure comes between its last read of the metadata and its put."""
    live.put([(LATER, "y")])
    eraser = live.driver()
    during(monkeypatch, SnapshotTable, "_put", lambda: eraser.erase("t", [KEY], check=False))
    live.cluster.snapshot("t", by_hand=True)
    assert state(live) == {**STATE, LATER: "y"}
    assert live.erase(KEY).whole
    assert live.remote_traces(KEY, SECRET) == []


def test_a_version_that_a_slow_job_takes_first_is_replaced(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lands when the erasure has written its file, and has not committed it."""
    live.put([(LATER, "y")])
    eraser = live.driver()
    put, commit = SnapshotTable._put, SnapshotTable.commit

    def slow(self: SnapshotTable, *planned: Any) -> None:
        def overtaken(other: SnapshotTable, *given: Any) -> frozenset[int]:
            monkeypatch.setattr(SnapshotTable, "commit", commit)
            put(self, *planned)
            assert KEY in state(live)
            return commit(other, *given)

        monkeypatch.setattr(SnapshotTable, "_put", put)
        monkeypatch.setattr(SnapshotTable, "commit", overtaken)
        assert eraser.erase("t", [KEY], check=False).whole
        put(self, *planned)

    monkeypatch.setattr(SnapshotTable, "_put", slow)
    live.cluster.snapshot("t", by_hand=True)
    assert state(live) == {**STATE, LATER: "y"}
    assert live.remote_traces(KEY, SECRET) == []


def test_a_file_that_cannot_be_replaced_is_named(live: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(live, "publish")
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "write_latest", NO_ANSWER)
        report = live.erase()
    assert not report.whole
    assert "the table lists it, and it does not follow the last erasure" in str(report.failures)
    assert live.erase().whole
    live.check_gone()


def test_a_late_object_of_a_slow_job_is_found_by_its_name(live: Published, tmp_path: Path) -> None:
    """A single PUT in flight creates it after the erasure. Verify finds it, and any run deletes it."""
    [name] = data_files(live)
    held = (folder(live) / name).read_bytes()
    assert live.erase(KEY, certificate=tmp_path / "erased.json").whole
    (folder(live) / name).write_bytes(held)
    [failure] = live.cluster.verify_erased(tmp_path / "erased.json").failures
    assert name in failure.message
    assert live.erase().whole, "it needs no keys"
    live.check_gone()


def test_two_erasures_at_once_harm_nothing(live: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    other = live.driver()
    during(monkeypatch, SnapshotTable, "commit", lambda: other.erase("t", [LATER], check=False))
    live.erase(KEY)
    assert live.erase(KEY, LATER).whole
    assert state(live) == {OTHER: "3"}
    assert live.remote_traces(KEY, SECRET, LATER) == []
    assert traces(live, KEY, SECRET, LATER) == []


def test_an_object_that_another_run_deletes_meanwhile_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    other = live.driver()
    live.put([(LATER, "y")])
    live.take()
    assert len(data_files(live)) > 1
    during(monkeypatch, publishing, "has_keys", lambda: other.erase("t", [KEY], now=True, check=False))
    assert "cleaning failed" not in str(live.erase(OTHER, now=True).failures)
    assert live.erase(KEY, OTHER, now=True).whole
    assert state(live) == {LATER: "y"}
    assert live.remote_traces(KEY, SECRET) == []


def test_an_election_meanwhile_is_met_under_the_new_leader(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = live.driver()
    during(
        monkeypatch,
        publish_module,
        "write_latest",
        lambda: other.elect("t", leader=live.followers()[0]).raise_for_failures(),
    )
    live.erase(KEY)
    assert live.erase(KEY).whole
    live.check_gone()


def test_an_unfinished_upload_is_named(live: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow job has opened its file, and gives it a name later."""
    live.put([(LATER, "y")])
    eraser, reports = live.driver(), []
    during(
        monkeypatch,
        publish_module,
        "write_published",
        lambda: reports.append(eraser.erase("t", [KEY], check=False)),
        after=True,
    )
    live.cluster.snapshot("t", by_hand=True)
    found = [parse_published_path(name) for name in data_files(live)]
    assert {one[1].generation for one in found if one is not None} == {live.generation()}, "it got no name"
    assert not reports[0].whole
    assert "unfinished uploads have no name yet" in str(reports[0].certificate)
    assert live.erase(KEY).whole
    assert live.remote_traces(KEY, SECRET) == []
