"""Probe of a reviewer: a leader with a high watermark below its snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.partitions.paths import WatermarkName, base_name, parse_name
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, traces
from tests.unit.test_rev_abandoned import make_only
from tests.unit.test_upkeep_erase_of_snapshots import Erasable


def test_a_snapshot_above_a_late_high_watermark_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Erasable(tmp_path)
    live.begin(copies=3, file_delete_delay_ms="0", segment_bytes="1")
    live.put([(KEY, SECRET), (OTHER, "1")])
    live.put([(KEY, None)])
    live.take()
    live.clock.sleep(3600)
    live.cluster.retain().raise_for_failures()
    live.cluster.vacuum(check=False)
    live.put([(OTHER, "2")])
    live.put([(OTHER, "3")])
    make_only(live, monkeypatch)
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "4")])
    make_only(live, monkeypatch)
    leader = live.leader()
    replica = live.replica(leader)
    late = []
    for stored in replica.store.list(replica.folder):
        name = parse_name(base_name(stored.name))
        if isinstance(name, WatermarkName) and str(name) > "00000000000000000003.1":
            late.append(stored.name)
    replica.store.delete(late)
    log = live.log(leader)
    print(live.ids(leader), log.local_start, log.log_end, log.high_watermark, late)
    print(traces(live, KEY))
    report = live.erase(KEY, now=True, certificate=tmp_path / "c.json")
    print(report.whole, report.failures, report.rows)
    print(traces(live, KEY))
    if report.whole:
        print(live.cluster.verify_erased(tmp_path / "c.json").rows)
        assert traces(live, KEY, SECRET) == []
