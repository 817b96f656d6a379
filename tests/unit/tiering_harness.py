"""A leader on a folder and a remote tier on another, for tests of the remote tier."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import MergePolicy
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.bootstrap import auxiliary_state
from stratalog.tiering.copier import upload
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.plan import UploadPlan, earliest_pending_upload, plan_uploads
from stratalog.tiering.remote_change import CommittedBatch
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from tests.unit.harness import SCHEMA, OnePartition
from tests.unit.together import together

EACH_FILE = MergePolicy(segment_bytes=1, segment_ms=10**15, min_files=1000)
"""Every file is sealed separately."""
ONE_SEGMENT = MergePolicy(segment_bytes=10**12, segment_ms=0, min_files=1000)
"""All files together are sealed as one."""


def segment(base: int, end: int, *, epoch: int = 1, partition: int = 0, size: int = 100) -> RemoteSegment:
    """A merged segment ``[base, end)``."""
    return RemoteSegment(partition, DataName(base, end, epoch), end, size)


OURS = Histories({n: Lineage([(1, 0)]) for n in range(10)}, lambda: dict.fromkeys(range(10), Present(1)))
"""The history of all partitions: of leader epoch 1, the current one."""


def uploaded(of: RemoteSegment) -> Uploaded:
    return Uploaded(of, 1_700_000_000_000, f'{{"numRecords": {of.records}}}', of.size_bytes)


TENS = [segment(base, base + 10) for base in range(0, 50, 10)]
"""A plan: offsets [0, 50) in five segments."""


def check_commits_at_once(remote: Store, options: StoreOptions, drivers: int) -> None:
    """This number of drivers commit ``TENS`` at the same time, segment by segment: every offset is there once."""

    def drive(mine: DeltaTopicTable) -> None:
        mine.ensure(SCHEMA)
        for one in TENS:
            mine.commit([uploaded(one)], histories=OURS)

    together(*(partial(drive, table_in(remote, seed=number, options=options)) for number in range(drivers)))
    log = table_in(remote, options=options).load()
    assert [(one.base_offset, one.next_offset) for one in log.of_partition(0)] == [
        (one.base_offset, one.next_offset) for one in TENS
    ]
    assert log.version == len(TENS)


def table_in(
    remote: Store,
    *,
    seed: int = 0,
    topic_id: str = "f" * 32,
    cluster_id: str = "c",
    clock: ManualClock | None = None,
    options: StoreOptions | None = None,
) -> DeltaTopicTable:
    """Topic ``t``'s table, as one driver has it."""
    return DeltaTopicTable(
        remote,
        topic="t",
        topic_id=topic_id,
        cluster_id=cluster_id,
        options=options or StoreOptions(),
        clock=clock or ManualClock(),
        rng=random.Random(seed),
    )


class TieredPartition:
    """Topic ``t``, partition 0: a leader on a folder, a remote tier on another, and its table."""

    def __init__(self, folder: Path, remote: Store | None = None, options: StoreOptions | None = None) -> None:
        (folder / "leader").mkdir()
        (folder / "remote").mkdir(exist_ok=True)
        self.one = OnePartition(stores=[LocalStore(str(folder / "leader"))])
        self.remote: Store = LocalStore(str(folder / "remote")) if remote is None else remote
        self.table = table_in(self.remote, options=options)
        self.table.ensure(SCHEMA)
        self.log_start = 0

    @property
    def leader(self) -> Replica:
        return self.one.replicas.leader

    @property
    def log(self) -> ReplicaLog:
        return self.leader.log()

    def append(self, *counts: int) -> None:
        """Append this number of records, one file each."""
        for count in counts:
            start = self.log.log_end
            self.one.append([f"v{offset}" for offset in range(start, start + count)])

    def plan(self, policy: MergePolicy = EACH_FILE) -> UploadPlan:
        log = self.log
        start = earliest_pending_upload(log, self.table.load().of_partition(0), self.log_start, "t-0")
        return plan_uploads(log, start, policy=policy, now_ms=2_000_000_000_000)

    def upload(self, plan: UploadPlan) -> list[Uploaded]:
        return [upload(self.leader, run, self.remote, self.table.folder, compression="zstd") for run in plan.runs]

    def tier(self, policy: MergePolicy = EACH_FILE) -> CommittedBatch:
        """One tier run."""
        return self.commit(self.upload(self.plan(policy)))

    def commit(self, uploads: Sequence[Uploaded]) -> CommittedBatch:
        """Commit uploads under the current history of the leader."""
        return self.table.commit(
            uploads, (), Histories({0: self.log.lineage}, lambda: {0: Present(self.one.view.leader_epoch)})
        )


def three_segments(folder: Path) -> TieredPartition:
    """Segments [0, 3), [3, 7), [7, 12) are tiered; the table is at version 1."""
    made = TieredPartition(folder)
    made.append(3, 4, 5)
    made.tier()
    return made


def check_life_of_a_table(part: TieredPartition) -> None:
    """Three appends are tiered, reused after a crash, expired and deleted."""
    part.append(3, 4, 5)
    part.upload(part.plan())
    again = part.upload(part.plan())
    assert [done.copied_bytes for done in again] == [0, 0, 0]
    log = part.commit(again).log
    assert (log.version, log.start(0), log.end(0)) == (1, 0, 12)
    part.table.check_objects(log)
    found = part.table.objects()
    assert all(found.holds(each) for each in log.of_partition(0))
    state = auxiliary_state(part.remote, part.table.folder, log.of_partition(0)[-1])
    assert (state.offset, state.lineage.latest_epoch) == (12, 1)
    first = log.of_partition(0)[0]
    part.table.commit((), [first])
    asked = part.remote.counts.deletes
    assert part.table.vacuum(0) == [part.table.path(first)]
    assert part.remote.counts.deletes == asked + 1
    assert part.table.vacuum(0) == []
    part.table.delete()
    assert list(part.remote.list("")) == []
