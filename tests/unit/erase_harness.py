"""A cluster whose records are erased, and the traces of a key, for tests of erasures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing import snapshot_run
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.partitions.store import Store
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.at_calls import dies_at
from tests.unit.cluster_harness import LiveCluster, report_of
from tests.unit.test_upkeep_compact import Compacted, Row
from tests.unit.together import together

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


class RemoteTraces(LiveCluster):
    """A cluster whose remote tier may contain a key."""

    def remote_traces(self, *words: str) -> list[str]:
        """The objects of the remote tier that contain one of the words: in their bytes, or decoded."""
        return [str(path.relative_to(self.remote)) for path in sorted(self.remote.rglob("*")) if has(path, *words)]


class Erasable(RemoteTraces, Compacted):
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


def has(path: Path, *words: str) -> bool:
    """Whether this is a file that contains one of the words."""
    return path.is_file() and contains(path.read_bytes(), *words)


def contains(data: bytes, *words: str) -> bool:
    """Whether a file contains one of the words: in its bytes, or in its decoded pages or footer."""
    text = data
    if data[:4] == b"PAR1":
        text += str(pq.read_table(BytesIO(data)).to_pylist()).encode()
        text += str(pq.read_metadata(BytesIO(data)).to_dict()).encode()
    return any(word.encode() in text for word in words)


def traces(live: LiveCluster, *words: str) -> list[str]:
    """The files of all roots that contain one of the words."""
    return [name for name, data in live.on_brokers().items() if contains(data, *words)]


def pass_the_delay_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the delay of removed objects pass for delta-rs, which uses the clock of the machine."""
    load = DeltaTopicTable.load_with_removed

    def loaded(table: DeltaTopicTable, delay_ms: int) -> Any:
        log, removed = load(table, delay_ms)
        return log, replace(removed, due=removed.ever)

    monkeypatch.setattr(DeltaTopicTable, "load_with_removed", loaded)


def stop_at(live: LiveCluster, step: str) -> None:
    """A run that ends before this step."""
    owner: Any = next(one for one in (erasing, erasing._Erasing, snapshot_run) if hasattr(one, step))
    with dies_at(owner, step):
        live.cluster.erase("t", [KEY], check=False)


def verified_states(live: LiveCluster, certificate: Path) -> list[object]:
    """The state of each copy that the certificate names, as the cluster finds it."""
    return [row["state"] for row in report_of(lambda: live.cluster.verify_erased(certificate)).rows]


def erase_two_at_once(live: Erasable, *others: Callable[[], object]) -> None:
    """Two drivers erase beside the ``others``: the next run leaves nothing of both keys on the brokers."""
    runs = [partial(live.driver().erase, "t", keys, check=False) for keys in ([KEY], [KEY, OTHER])]
    together(*runs, *others)
    assert live.driver().erase("t", [KEY, OTHER]).whole
    assert traces(live, KEY, OTHER, SECRET) == []
    assert live.driver().verify(deep=True).ok
