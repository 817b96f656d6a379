"""What runs have found stays a finding until a look has seen it gone, and goes where its cause is mended; a
broker that is fenced takes nothing of it along.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from stratalog.engine.driver.stored_schedule import load_stored
from stratalog.engine.upkeep.memory.times import decode
from stratalog.partitions.paths import MAINTENANCE
from stratalog.partitions.store import StoredObject
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.contexts import context_of
from tests.unit.cluster_harness import LiveCluster, fence
from tests.unit.test_health import HOUR_MS, SMALL, files
from tests.unit.test_upkeep_bad_remote import table_of


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``, of which two of three segments are in the remote tier alone; maintained."""
    made = LiveCluster(tmp_path, on_disk=True, voters=(3,))
    made.cluster.topics.alter_configs(None, SMALL)
    made.tiered()
    made.fill("abc")
    made.cluster.maintain().raise_for_failures()
    assert found(made) == {}
    return made


def found(live: LiveCluster) -> dict[str, str]:
    """The commands by finding, of another driver."""
    return {one.kind: one.do for one in live.driver().health().findings}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(bytes(content))


def test_what_verify_has_found_stays_until_it_is_seen_gone(live: LiveCluster) -> None:
    flip(files(live, live.followers()[0])[-1])
    assert found(live) == {}, "no listing shows it"
    assert not live.driver().verify(deep=True).ok
    assert "heal --topics t" in found(live)["damaged-replicas"]
    assert live.driver().verify().ok
    assert [*found(live)] == ["damaged-replicas"], "a look at names does not see the bytes"
    assert live.driver().heal(check=False).ok
    assert found(live) == {}


def test_a_file_that_a_person_puts_back_is_seen_by_the_next_verify(live: LiveCluster) -> None:
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


def test_a_step_that_failed_by_damage_is_well_as_soon_as_that_is_mended(live: LiveCluster) -> None:
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
    assert [*found(live)] == ["damaged-replicas"]


def test_damage_of_the_metadata_log_is_remembered_too(live: LiveCluster) -> None:
    file = max((live.root(3)).rglob("__cluster_metadata*/*.parquet"))
    content = file.read_bytes()
    flip(file)
    live.driver().verify(deep=True)
    assert "verify --deep --topics __cluster_metadata" in found(live)["damaged-replicas"]
    file.write_bytes(content)
    live.driver().verify("__cluster_metadata", deep=True).raise_for_failures()
    assert found(live) == {}


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_look_a_day_finds_remote_objects_that_are_not_as_the_table_says(tmp_path: Path, how: str) -> None:
    """Nothing else has changed: no step has anything else to do."""
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


def test_a_foreign_optimize_is_taken_back_by_the_next_maintain(live: LiveCluster) -> None:
    """Also where nothing is to be uploaded, and by all of maintain or the step alone."""
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
    stat = LocalStore.stat

    def counted(store: LocalStore, name: str) -> StoredObject:
        asked.append(name)
        return stat(store, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "stat", counted)
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
    context = context_of(live.driver())
    return decode(load_stored(context, context.metadata.image(), MAINTENANCE).line)
