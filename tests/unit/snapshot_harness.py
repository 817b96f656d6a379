"""A cluster with a topic whose snapshots hold the latest record of each key, for tests of the snapshot job."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.segments.reader import read_batches
from stratalog.snapshots.reader import Snapshot, read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch
from tests.unit.tampering import Spot

DAY_MS = 24 * 60 * 60 * 1000
Pairs = Sequence[tuple[str, str | None]]


def keyed(pairs: Pairs, at_ms: int) -> pa.RecordBatch:
    """Records of these keys and values."""
    values = batch([value or "" for _, value in pairs], at_ms * 1000)
    columns = {name: values.column(name) for name in RECORD_COLUMNS}
    columns["key"] = pa.array([key.encode() for key, _ in pairs], pa.binary())
    columns["value"] = pa.array([None if value is None else value.encode() for _, value in pairs], pa.binary())
    return pa.RecordBatch.from_pydict(columns)


class Keyed(LiveCluster):
    """A cluster with topic ``t``, whose snapshots hold the latest record of each key."""

    def begin(self, *, partitions: int = 1, copies: int = 3, **configs: str) -> Keyed:
        self.topic(partitions=partitions, copies=copies, **{"cleanup_policy": "snapshot", **configs})
        return self

    def put(self, pairs: Pairs, *, at_ms: int | None = None, driver: Cluster | None = None) -> None:
        """Append once to partition 0, by default with the time of the clock."""
        at_ms = self.clock.now_ms() if at_ms is None else at_ms
        cluster = driver or self.cluster
        cluster.append_batches("t", {0: [keyed(pairs, at_ms)]}).raise_for_failures()

    def put_beside_a_fenced_follower(self) -> tuple[int, int]:
        """Append a record, fence the only follower, and append two more. Returns the leader and the follower."""
        self.put([("a", "1")])
        leader, (behind,) = self.leader(), self.followers()
        self.cluster.brokers.fence(behind).raise_for_failures()
        self.put([("a", "2"), ("b", "2")])
        return leader, behind

    def take(self, driver: Cluster | None = None) -> Report:
        """Take a snapshot by hand, with all new records."""
        return (driver or self.cluster).snapshot("t", by_hand=True).raise_for_failures()

    def take_metadata(self) -> Report:
        """Take a snapshot of the metadata log by hand."""
        return self.cluster.snapshot("__cluster_metadata", by_hand=True).raise_for_failures()

    def ids(self, broker: int) -> list[str]:
        """The snapshots of a replica."""
        return [str(SnapshotId.of(name)) for name, _ in self.log(broker).listing.checkpoints]

    def snapshot(self, broker: int, index: int = -1) -> Snapshot:
        """One of them, verified."""
        replica = self.replica(broker)
        _, stored = self.log(broker).listing.checkpoints[index]
        return read_snapshot(
            replica.store, replica.folder, stored, owner=replica.topic_id, partition=replica.partition
        )

    def held(self, broker: int) -> dict[str, str | None]:
        """The content of its latest snapshot."""
        return {
            k.decode(): v if v is None else v.decode() for k, v in self.snapshot(broker).rows() if k is not None
        }

    def state(self, broker: int) -> dict[str, str]:
        """The state from the snapshot of that replica and the log after it."""
        state: dict[str, str | None] = {}
        log, start = self.log(broker), 0
        if log.listing.checkpoints:
            state, start = self.held(broker), self.snapshot(broker).snapshot_id.end_offset
        assert start >= log.local_start
        for part in self.cluster.plan_read("t", start={0: start}, partitions=[0]):
            assert not part.remote
        state.update(self._log_after(broker, start))
        return {key: value for key, value in state.items() if value is not None}

    def _log_after(self, broker: int, start: int) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        log, store = self.log(broker), self.replica(broker).store
        for link in log.chain:
            low, high = max(link.start, start), min(link.end, log.high_watermark)
            if low < high:
                for rows in read_batches(store, link.file, low, high, ["key", "value"]):
                    for row in rows.to_pylist():
                        found[row["key"].decode()] = None if row["value"] is None else row["value"].decode()
        return found


def checkpoint(live: LiveCluster, broker: int) -> Spot:
    """The file of a replica's latest snapshot."""
    _, stored = live.log(broker).listing.checkpoints[-1]
    return Spot(live.store(broker), stored.name)
