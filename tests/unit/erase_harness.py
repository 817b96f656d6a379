"""A cluster whose records are erased, and the traces of a key, for tests of erasures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.partitions.store import Store
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.cluster_harness import LiveCluster
from tests.unit.test_upkeep_compact import Compacted, Row

KEY, OTHER = "erase-me-17", "keep-me-18"


SECRET = "secret-of-17"


ROWS: tuple[Row, ...] = (
    (OTHER, "1"),
    (KEY, f"{SECRET}-a"),
    (OTHER, "2"),
    (KEY, None),
    (OTHER, "3"),
    (KEY, f"{SECRET}-b"),
)


KEPT = {at: row for at, row in enumerate(ROWS) if row[0] != KEY}


DAY_MS = 24 * 3_600_000


class Erasable(Compacted):
    """A cluster with topic ``t``, whose segments are small, and which keeps everything."""

    def __init__(
        self,
        folder: Path,
        *,
        on_disk: bool = False,
        fill: bool = True,
        through: Callable[[str, Store], Store] = lambda uri, store: store,
        **configs: str,
    ) -> None:
        LiveCluster.__init__(self, folder, on_disk=on_disk, through=through)
        given = {"cleanup_policy": "delete", "segment_bytes": "1", "file_delete_delay_ms": "0", **configs}
        self.topic(**given)
        if fill:
            self.fill_all()

    def fill_all(self) -> None:
        self.put(*ROWS[:2])
        for row in ROWS[2:]:
            self.put(row)

    def erase(self, *keys: str, **options: Any) -> ErasureReport:
        return self.cluster.erase("t", list(keys) or None, check=False, **options)


def traces(live: LiveCluster, *words: str) -> list[str]:
    """The files of all roots that contain one of the words: in their bytes, or in their decoded pages."""
    found = []
    for name, data in live.on_brokers().items():
        decoded = str(pq.read_table(BytesIO(data)).to_pylist()) if data[:4] == b"PAR1" else ""
        footer = str(pq.read_metadata(BytesIO(data)).to_dict()) if data[:4] == b"PAR1" else ""
        for word in words:
            if word.encode() in data or word in decoded or word in footer:
                found.append(name)
    return found


def pass_the_delay_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the delay of removed objects pass for delta-rs, which uses the clock of the machine."""
    load = DeltaTopicTable.load_with_removed

    def loaded(table: DeltaTopicTable, delay_ms: int) -> Any:
        log, removed = load(table, delay_ms)
        return log, replace(removed, due=removed.ever)

    monkeypatch.setattr(DeltaTopicTable, "load_with_removed", loaded)


def stop_at(live: Erasable, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A run that ends before this step."""

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(erasing if hasattr(erasing, step) else erasing._Erasing, step, stop)
        with pytest.raises(KeyboardInterrupt):
            live.erase(KEY)
