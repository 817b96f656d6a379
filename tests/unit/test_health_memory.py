"""Findings of runs stay until a look has seen that they are gone, and disappear when their cause is repaired;
findings about a fenced broker stay, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from stratalog import Failure, Report
from stratalog.engine.driver.stored_schedule import load_stored
from stratalog.engine.upkeep.memory import kept_times
from stratalog.engine.upkeep.memory.kept_times import KeptTimes
from stratalog.engine.upkeep.memory.runs import remembered
from stratalog.engine.upkeep.memory.times import Ran, Times, decode
from stratalog.engine.upkeep.replication import merge
from stratalog.partitions.errors import SourceChangedError, StorageError, UnknownTopicOrPartitionError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import MAINTENANCE
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, fence, unfence
from tests.unit.health_harness import HOUR_MS, SMALL, files
from tests.unit.test_upkeep_bad_remote import table_of


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``, two of whose three segments are only in the remote tier; maintained."""
    made = LiveCluster(tmp_path, on_disk=True, voters=(3,))
    made.cluster.topics.alter_configs(None, SMALL)
    made.tiered()
    made.fill("abc")
    made.cluster.maintain().raise_for_failures()
    assert found(made) == {}
    return made


def found(live: LiveCluster) -> dict[str, str]:
    """The commands of the findings, according to another driver."""
    return {one.kind: one.do for one in live.driver().health().findings}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(bytes(content))


def test_a_finding_of_verify_stays_until_a_job_sees_that_it_is_gone(live: LiveCluster) -> None:
    flip(files(live, live.followers()[0])[-1])
    assert found(live) == {}, "no listing shows it"
    assert not live.driver().verify(deep=True).ok
    assert "heal --topics t" in found(live)["damaged-replicas"]
    assert live.driver().verify().ok
    assert [*found(live)] == ["damaged-replicas"], "a look at names does not see the bytes"
    assert live.driver().heal(check=False).ok
    assert found(live) == {}


def test_a_file_that_a_person_restores_is_seen_by_the_next_verify(live: LiveCluster) -> None:
    file = files(live, live.followers()[0])[-1]
    content = file.read_bytes()
    flip(file)
    live.driver().verify(deep=True)
    file.write_bytes(content)
    assert [*found(live)] == ["damaged-replicas"]
    live.driver().verify(deep=True).raise_for_failures()
    assert found(live) == {}


def test_a_verify_that_finds_nothing_new_writes_nothing(live: LiveCluster) -> None:
    for damaged in (False, True):
        if damaged:
            flip(files(live, live.followers()[0])[-1])
        live.driver().verify(deep=True)
        before = live.on_brokers()
        live.driver().verify(deep=True)
        assert live.on_brokers() == before


def test_a_dry_run_of_heal_remembers_nothing(live: LiveCluster) -> None:
    flip(files(live, live.followers()[0])[-1])
    before = live.on_brokers()
    live.driver().heal(dry_run=True, check=False)
    assert live.on_brokers() == before


def test_a_step_that_damage_failed_is_well_as_soon_as_the_damage_is_repaired(live: LiveCluster) -> None:
    object_ = min((live.remote / next(live.remote.glob("t-*"))).rglob("*.parquet"))
    object_.unlink()
    live.driver().maintain(only=["retain"], check=False)
    failing = found(live)
    assert "heal --topics t" in failing["upkeep-failing"]
    live.driver().heal(check=False).raise_for_failures()
    assert found(live) == {}


def test_a_remote_tier_that_does_not_answer_is_not_taken_for_sound(live: LiveCluster) -> None:
    object_ = min((live.remote / next(live.remote.glob("t-*"))).rglob("*.parquet"))
    object_.unlink()
    live.driver().verify()
    assert [*found(live)] == ["damaged-replicas"]
    away = live.folder / "away"
    live.remote.rename(away)
    live.remote.write_text("no folder")
    live.driver().verify()
    live.remote.unlink()
    away.rename(live.remote)
    assert {*found(live)} == {"damaged-replicas", "upkeep-failing"}


def test_damage_of_the_metadata_log_is_remembered_too(live: LiveCluster) -> None:
    file = max((live.root(3)).rglob("__cluster_metadata*/*.parquet"))
    content = file.read_bytes()
    flip(file)
    live.driver().verify(deep=True)
    assert "verify --deep --topics __cluster_metadata" in found(live)["damaged-replicas"]
    file.write_bytes(content)
    live.driver().verify("__cluster_metadata", deep=True).raise_for_failures()
    assert found(live) == {}


def test_damage_of_a_voter_that_does_not_answer_is_not_taken_for_repaired(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True, voters=(1, 2, 3))
    file = max((live.root(3)).rglob("__cluster_metadata*/*.parquet"))
    content = file.read_bytes()
    flip(file)
    assert not live.driver().verify(deep=True).ok
    with live.unreachable(3):
        live.driver().maintain(only="replicate", check=False)
        live.driver().verify(deep=True).raise_for_failures()
        assert "verify --deep --topics __cluster_metadata" in found(live)["damaged-replicas"]
    file.write_bytes(content)
    live.driver().verify(deep=True).raise_for_failures()
    assert "damaged-replicas" not in found(live)


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_look_a_day_finds_remote_objects_that_are_not_as_the_table_says(tmp_path: Path, how: str) -> None:
    """Nothing else has changed, so no step has other work."""
    live = LiveCluster(tmp_path, voters=(3,))
    live.cluster.topics.alter_configs(None, SMALL)
    live.tiered(local_retention_bytes="-2")
    live.fill("abc")
    for _ in range(5):
        live.clock.advance_ms(10 * 60_000)
        live.driver().maintain().raise_for_failures()
    object_ = min(live.remote.glob("t-*/0/*.parquet"))
    if how == "gone":
        object_.unlink()
    else:
        object_.write_bytes(object_.read_bytes()[:-10])
    live.clock.advance_ms(24 * HOUR_MS)
    live.driver().maintain(check=False, exclude=["scrub"])
    assert "heal --topics t" in found(live)["upkeep-failing"]
    live.driver().heal(check=False).raise_for_failures()
    assert found(live) == {}


def test_a_foreign_optimize_is_reverted_by_the_next_maintain(live: LiveCluster) -> None:
    """It is reverted even if nothing is to be uploaded, by a complete run of maintain or by the step alone."""
    for options in ({}, {"due": True, "only": ["tier"]}):
        live.driver().maintain().raise_for_failures()
        table_of(live).optimize.compact()
        assert [*found(live)] == ["remote-table"]
        notes = live.driver().maintain(**options).raise_for_failures().notes
        assert any("OPTIMIZE" in note for note in notes)
        assert found(live) == {}


def test_a_table_that_nobody_touches_costs_an_idle_run_one_request(live: LiveCluster) -> None:
    for _ in range(4):
        live.clock.advance_ms(10 * 60_000)
        live.driver().maintain(exclude=["scrub", "vacuum"]).raise_for_failures()
    live.driver().maintain(only=["tier"], due=True)
    asked: list[str] = []

    def counted(name: str) -> None:
        call = getattr(LocalStore, name)

        def count(store: LocalStore, what: str, *others: Any, **named: Any) -> Any:
            asked.append(what)
            return call(store, what, *others, **named)

        patch.setattr(LocalStore, name, count)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("stat", "read", "list", "names", "walk"):
            counted(name)
        patch.setattr(DeltaTopicTable, "load", lambda table: pytest.fail("the table is read"))
        live.driver().maintain(only=["tier"], due=True).raise_for_failures()
    assert len([name for name in asked if "_delta_log" in name]) == 1


def test_a_table_that_a_person_has_to_restore_is_one_finding(live: LiveCluster) -> None:
    table = table_of(live)
    write_deltalake(table, pa.table(table.to_pyarrow_table()).slice(0, 1), mode="append")
    live.driver().maintain(check=False)
    assert [*found(live)] == ["remote-table"]


@pytest.mark.parametrize("broker", [1, 2])
def test_the_memory_survives_the_broker_that_holds_it(live: LiveCluster, broker: int) -> None:
    flip(files(live, 3)[-1])
    live.driver().verify(deep=True)
    before = times(live)
    fence(live, broker)
    assert {"upkeep", "upkeep-failing"}.isdisjoint(found(live))
    assert "damaged-replicas" in found(live)
    assert times(live) == before
    rows = live.driver().maintain(due=True, check=False).rows
    due = {row["step"] for row in rows if row["outcome"] == "done" and row["items"] != 0}
    assert due <= {"replicate", "tier", "elect"}, "nothing else is due again"


def times(live: LiveCluster) -> object:
    ports = ports_of(live.driver())
    return decode(load_stored(ports.storage, ports.metadata.image(), MAINTENANCE).line)


@contextmanager
def no_remote(live: LiveCluster) -> Iterator[None]:
    live.remote.rename(live.folder / "away")
    yield
    (live.folder / "away").rename(live.remote)


def test_a_failure_by_hand_stays_until_the_job_has_succeeded_there(live: LiveCluster) -> None:
    live.tiered("u")
    with no_remote(live):
        assert not live.driver().retain(check=False).ok
    before = live.on_brokers()
    assert [*found(live)] == ["upkeep-failing"]
    live.driver().retain("u")
    live.driver().merge()
    assert "maintain --only retain" in found(live)["upkeep-failing"]
    live.driver().retain("t")
    assert found(live) == {}
    with no_remote(live):
        live.driver().retain(dry_run=True, check=False)
    assert found(live) == {}
    assert before != live.on_brokers()


def test_a_run_that_others_have_disturbed_forgets_no_failure(live: LiveCluster) -> None:
    """The outcome of that partition is unknown; the other partitions have succeeded."""
    live.topic("u")
    ports = ports_of(live.driver())
    ports.metadata.image()

    def run(*failures: Failure) -> Callable[[], Report]:
        return lambda: Report("merge", (), failures)

    remembered(
        ports.metadata,
        ports.storage,
        ports.clock,
        "merge",
        None,
        run(*(Failure(f"{one}-0", "STORAGE_ERROR", "") for one in "tu")),
    )
    assert [*found(live)] == ["upkeep-failing"]
    remembered(
        ports.metadata, ports.storage, ports.clock, "merge", None, run(Failure("t-0", SourceChangedError.code, ""))
    )
    (one,) = live.driver().health().findings
    assert "t-0" in one.what
    assert "u-0" not in one.what

    def disturbed() -> Report:
        raise SourceChangedError("a file is gone")

    with pytest.raises(SourceChangedError):
        remembered(ports.metadata, ports.storage, ports.clock, "merge", None, disturbed)
    assert [*found(live)] == ["upkeep-failing"]
    remembered(ports.metadata, ports.storage, ports.clock, "merge", None, run())
    assert found(live) == {}


def test_an_error_that_ends_a_job_is_remembered_and_a_wrong_call_is_not(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        live.driver().merge("nowhere")
    assert found(live) == {}
    with monkeypatch.context() as patch:
        patch.setattr(
            merge, "merge", lambda *given, **options: (_ for _ in ()).throw(StorageError("disk on fire"))
        )
        with pytest.raises(StorageError):
            live.driver().merge("t")
    (one,) = live.driver().health().findings
    assert "t: KAFKA_STORAGE_ERROR: disk on fire" in one.what
    live.driver().merge("t")
    assert found(live) == {}


def test_a_job_that_failed_by_hand_is_due_for_maintain_though_nothing_has_changed(live: LiveCluster) -> None:
    live.tiered("u")

    def merged() -> object:
        live.clock.advance_ms(10 * 60_000)
        (row,) = live.driver().maintain(only=["merge"], due=True).raise_for_failures().rows
        return row["items"]

    while merged():
        pass
    with no_remote(live):
        assert not live.driver().merge(check=False).ok
    assert [*found(live)] == ["upkeep-failing"]
    assert merged() == 2
    assert found(live) == {}
    assert merged() == 0


def test_a_job_that_goes_well_again_and_again_writes_nothing_to_the_memory(live: LiveCluster) -> None:
    before = load_stored(
        ports_of(live.driver()).storage, ports_of(live.driver()).metadata.image(), MAINTENANCE
    ).version
    for _ in range(2):
        for job in ("replicate", "merge", "retain", "vacuum", "verify"):
            getattr(live.driver(), job)()
    after = load_stored(
        ports_of(live.driver()).storage, ports_of(live.driver()).metadata.image(), MAINTENANCE
    ).version
    assert after == before


def test_damage_on_a_fenced_broker_is_not_taken_for_repaired(live: LiveCluster) -> None:
    """Nobody reads the broker's files while it is fenced. The other broker is seen to be intact."""
    one, other = live.followers()
    before = files(live, one)[-1].read_bytes()
    for broker in (one, other):
        flip(files(live, broker)[-1])
    assert not live.driver().verify(deep=True).ok
    files(live, one)[-1].write_bytes(before)
    fence(live, other)
    live.driver().verify(deep=True).raise_for_failures()
    (finding,) = [each for each in live.driver().health().findings if each.kind == "damaged-replicas"]
    assert f"on broker {other}" in finding.what
    assert f"on broker {one}" not in finding.what
    unfence(live, other)
    live.driver().heal().raise_for_failures()
    assert found(live) == {}


def test_an_outcome_that_could_not_be_stored_is_stored_with_the_next_one(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = ports_of(live.driver())
    kept = KeptTimes(ports.storage, ports.metadata.image())
    failed = Ran("merge", [Failure("t-0", "STORAGE_ERROR", "")], None, 1)
    kept.change(lambda times: times.ran(failed))
    with monkeypatch.context() as patch:
        patch.setattr(kept_times, "save_stored", lambda *_, **__: "no answer")
        assert kept.keep(once=True) == "no answer"
    kept.change(lambda times: times.ran(Ran("tier", [], None, 1)))
    assert kept.keep() is None
    assert [*found(live)] == ["upkeep-failing"]


def test_a_deleted_partition_needs_no_scrub(live: LiveCluster) -> None:
    """The deleted topic is forgotten by the next maintain; until then its time must not count."""
    live.topic("u")
    live.clock.advance_ms(HOUR_MS)
    live.cluster.maintain(only="scrub").raise_for_failures()
    ports = ports_of(live.driver())
    image = ports.metadata.image()
    kept = KeptTimes(ports.storage, image)
    key = TopicIdPartition(image.topic("u").topic_id, 0)
    kept.remember(Times(scrubbed={key: live.clock.now_ms() - 100 * 24 * HOUR_MS}))
    assert kept.keep() is None
    health = live.driver().health()
    assert [one.subjects for one in health.findings] == [("u-0",)]
    assert health.totals["scrub-lag-ms"]
    live.cluster.topics.delete("u").raise_for_failures()
    health = live.driver().health()
    assert [one.subjects for one in health.findings] == []
    assert health.totals["scrub-lag-ms"] == 0
