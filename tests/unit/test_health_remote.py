"""Health of the remote tier: failing uploads, due segments, tables changed by other programs."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.unit.cluster_harness import LiveCluster
from tests.unit.health_harness import Patient, files, in_good_health
from tests.unit.test_upkeep_bad_remote import table_of


@pytest.fixture
def tiered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Patient:
    return in_good_health(Patient(tmp_path, capsys), tiered=True)


@pytest.fixture
def no_remote(tiered: Patient) -> Patient:
    """The remote tier is missing until the test moves it back."""
    tiered.live.fill("de")
    tiered.live.remote.rename(tiered.live.folder / "away")
    tiered.live.remote.write_text("no folder")
    return tiered


@pytest.mark.slow
def test_uploads_that_fail_are_one_finding_while_the_remote_tier_is_away(no_remote: Patient) -> None:
    live = no_remote.live
    assert no_remote.job("tier") == 1
    found = no_remote.found()
    assert [*found] == ["offline-remote-tier"]
    assert "is its volume mounted?" in found["offline-remote-tier"]["what"]
    assert no_remote.job("tier") == 1
    affected = no_remote.found()["offline-remote-tier"]["affected"]
    assert affected == "RemoteCopyErrorsPerSec 1, remote-table 1, upkeep-failing 1"
    assert no_remote.figures()["RemoteCopyLagBytes"] > 0
    assert no_remote.job("describe", "--topics", "t") == 1
    assert no_remote.job("maintain") == 1
    assert [*no_remote.found()] == ["offline-remote-tier"], "one cause"
    live.remote.unlink()
    (live.folder / "away").rename(live.remote)
    assert no_remote.job("describe", "--topics", "t") == 1, "nobody has tried again"
    found = no_remote.found()
    assert found["RemoteCopyErrorsPerSec"]["severity"] == "error"
    assert found["RemoteCopyErrorsPerSec"]["since"] is not None
    assert "is its volume mounted?" in found["RemoteCopyErrorsPerSec"]["what"], "the sentence, not the code alone"
    no_remote.follow(found["RemoteCopyErrorsPerSec"])
    assert no_remote.job("describe", "--topics", "t") == 0
    no_remote.repair()
    assert no_remote.figures()["RemoteCopyLagBytes"] == 0


@pytest.mark.slow
def test_records_that_should_be_in_the_remote_tier_by_now(tiered: Patient) -> None:
    live = tiered.live
    live.cluster.topics.alter_configs("t", {"segment.ms": "1000"})
    live.fill("d")
    assert tiered.found() == {}
    long_ago_s = live.clock.now_ms() / 1000 - 2 * 3600
    os.utime(files(live, live.leader())[-1], (long_ago_s, long_ago_s))
    assert tiered.found()["RemoteCopyLagBytes"]["severity"] == "error"
    tiered.repair()


@pytest.mark.slow
def test_a_foreign_optimize_is_found_and_reverted(tiered: Patient) -> None:
    table_of(tiered.live).optimize.compact()
    found = tiered.found()["remote-table"]
    assert "OPTIMIZE" in found["what"]
    tiered.follow(found)
    assert tiered.found() == {}


@pytest.mark.slow
def test_a_foreign_write_is_found_with_the_command_that_reverts_it(tiered: Patient) -> None:
    table = table_of(tiered.live)
    write_deltalake(table, pa.table(table.to_pyarrow_table()).slice(0, 1), mode="append")
    found = tiered.found()["remote-table"]
    assert "changed the records" in found["what"]
    assert found["do"].startswith("python -c")
    tiered.follow(found)
    assert tiered.found() == {}
    assert DeltaTable(table.table_uri).version() > 0


def test_lags_are_unknown_while_a_leader_cannot_be_listed(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True, voters=(3,))
    live.tiered()
    live.topic("u")
    live.append(["a"]).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    lags = {"RemoteCopyLagBytes", "remote-copy-lag-ms", "MaxLag", "replication-lag-records"}
    with live.unreachable(live.leader()):
        assert not lags & live.driver().health().totals.keys()
    totals = live.driver().health().totals
    assert {name: totals[name] for name in lags} == dict.fromkeys(lags, 0)
