"""Topics with snapshots whose keys are erased, for tests of erasures from snapshots and from their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from stratalog import Cluster
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.partitions.errors import StorageError
from tests.unit.at_calls import raising
from tests.unit.erase_harness import KEY, OTHER, SECRET, RemoteTraces, traces
from tests.unit.restore_harness import Heir
from tests.unit.snapshot_harness import Keyed
from tests.unit.snapshot_table_harness import folder, ours, state, table

LATER = "keep-me-19"
STATE = {OTHER: "3", LATER: "x"}
ALL = {**STATE, KEY: f"{SECRET}-b"}
NO_ANSWER = raising(StorageError("no answer"))


class Erasable(RemoteTraces, Keyed):
    """A topic with snapshots, of which some have the key."""

    def start(self, *, copies: int = 3, **configs: str) -> Erasable:
        self.begin(copies=copies, **{"file_delete_delay_ms": "0", "segment_bytes": "1", **configs})
        self.put([(OTHER, "1"), (KEY, f"{SECRET}-a")])
        self.put([(OTHER, "2")])
        self.take()
        self.put([(KEY, f"{SECRET}-b"), (LATER, "x")])
        self.put([(OTHER, "3")])
        return self

    def erase(self, *keys: str, driver: Cluster | None = None, **options: Any) -> ErasureReport:
        return (driver or self.cluster).erase("t", list(keys) or None, check=False, **options)

    def generations(self, broker: int) -> list[int]:
        return [name.generation for name, _ in self.log(broker).listing.checkpoints]

    def check_erased(self, *brokers: int) -> None:
        for broker in brokers or (1, 2, 3):
            assert self.state(broker) == STATE
        assert traces(self, KEY, SECRET) == []


class Published(Erasable):
    """A topic whose table lists a snapshot with the key, and has an older one of it."""

    def begin(self, *, partitions: int = 1, copies: int = 3, **configs: str) -> Published:
        super().begin(partitions=partitions, copies=copies, remote_snapshot_table_enable="true", **configs)
        return self

    def start(self, *, copies: int = 3, **configs: str) -> Published:
        super().start(copies=copies, **configs)
        self.take()
        return self

    def start_in_two_partitions(self) -> dict[str, str]:
        """Publish the key and three others in two partitions. Returns the content of the table."""
        self.begin(partitions=2, file_delete_delay_ms="0")
        self.cluster.produce("t", pa.table({"key": [b"a", b"b", b"c", KEY.encode()], "value": [b"v"] * 4}))
        self.take()
        return state(self)

    def restore(self) -> Heir:
        """Go on as the cluster that is restored from the remote tier: its brokers have no record of the topic."""
        self.tiered("u")
        self.fill("a", "u")
        self.cluster.tier().raise_for_failures()
        heir = Heir(self)
        heir.restore().raise_for_failures()
        heir.live_again()
        return heir

    def disable(self) -> None:
        """Stop to publish the snapshots, and delete the table."""
        self.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})
        self.cluster.vacuum("t").raise_for_failures()

    def check_gone(self) -> None:
        """Check that no trace of the key is left anywhere, and that all else is unchanged."""
        assert state(self) == STATE
        assert pl.scan_delta(str(folder(self))).collect().height == len(STATE)
        assert self.remote_traces(KEY, SECRET) == []
        self.check_erased()
        assert self.cluster.verify(deep=True).ok

    def generation(self) -> int:
        """The generation of the snapshot that the table lists."""
        [file] = ours(self).load().files.values()
        return file.snapshot.generation

    def versions(self) -> list[int]:
        """The versions that the log of the table still has."""
        return sorted({int(path.name[:20]) for path in (folder(self) / "_delta_log").glob("0*")})


def add_the_key(live: Keyed) -> None:
    """Another program adds rows of the key."""
    rows = table(live).to_pyarrow_table()
    keys = pa.array([KEY.encode()] * rows.num_rows, rows.schema.field("key").type)
    at = rows.schema.get_field_index("key")
    write_deltalake(str(folder(live)), rows.set_column(at, "key", keys), mode="append")


@pytest.fixture
def erasable_topic(tmp_path: Path) -> Erasable:
    return Erasable(tmp_path).start()


@pytest.fixture
def published_topic(tmp_path: Path) -> Published:
    return Published(tmp_path).start()
