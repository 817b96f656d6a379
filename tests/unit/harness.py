"""One partition on memory stores, for tests of the data plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from stratalog.engine.metadata.image import BrokerImage, PartitionView
from stratalog.engine.replication.append import Appended, NotAppended, append
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.engine.replication.sync import Synced, SyncOptions, sync_followers
from stratalog.engine.replication.watermark import advance_high_watermark
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.producers import ProducerAppend, marker
from stratalog.partitions.records import physical_schema
from stratalog.partitions.root import format_root
from stratalog.partitions.runner import SerialRunner, values
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering.bootstrap import LastTiered

SCHEMA = physical_schema()


def sync(replicas: PartitionReplicas, follower_id: int, options: SyncOptions) -> Synced:
    """Run ``sync_followers`` for one follower. Raises: its error."""
    _, outcomes = sync_followers(replicas, [follower_id], options)
    return values(outcomes)[0]


def batch(values: Iterable[bytes | str | None], timestamp_us: int = 1_000_000) -> pa.RecordBatch:
    """Records with these values, no keys, timestamps one microsecond apart."""
    rows = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(range(timestamp_us, timestamp_us + len(rows)), pa.int64()).cast(
                SCHEMA.field("timestamp").type
            ),
            "key": pa.nulls(len(rows), pa.binary()),
            "value": pa.array(rows, pa.binary()),
            "headers": pa.nulls(len(rows), SCHEMA.field("headers").type),
        }
    )


class OnePartition:
    """Topic ``t``, partition 0, on brokers 1..n; ``view`` stands in for the metadata."""

    def __init__(self, brokers: int = 3, stores: Sequence[Store] | None = None) -> None:
        self.clock = ManualClock()
        self.ids = iter(f"{n:032x}" for n in range(1, 1_000_000))
        made = stores or [MemoryStore(f"broker-{n}", self.clock) for n in range(1, brokers + 1)]
        self.stores: dict[int, Store] = dict(enumerate(made, start=1))
        ids = tuple(self.stores)
        self.view = PartitionView(
            topic="t",
            topic_id="f" * 32,
            partition=0,
            leader=1,
            leader_epoch=1,
            isr=ids,
            adding=(),
            replicas=ids,
            assignments=dict.fromkeys(ids, 7),
            partition_epoch=1,
            log_start_offset=0,
            brokers={n: self._register(n) for n in ids},
        )

    def _register(self, broker_id: int) -> BrokerImage:
        found = format_root(self.stores[broker_id], "c", broker_id, lambda: next(self.ids))
        return BrokerImage(
            broker_id=broker_id,
            broker_epoch=broker_id,
            directory_id=found.directory_id,
            incarnation_folder=found.directory_id,
            rack=None,
            log_dir="",
            fenced=False,
        )

    @property
    def replicas(self) -> PartitionReplicas:
        return PartitionReplicas(self.view, self.stores)

    def change(self, **fields: object) -> None:
        """Commit a change of the partition."""
        self.view = replace(self.view, partition_epoch=self.view.partition_epoch + 1, **fields)  # type: ignore[arg-type]

    def elect(self, leader: int, isr: Sequence[int] | None = None) -> None:
        """Begin a new leader epoch."""
        self.change(leader=leader, leader_epoch=self.view.leader_epoch + 1, isr=tuple(isr or self.view.isr))

    def append(
        self,
        values: Iterable[bytes | str],
        *,
        producer: str | None = None,
        sequence: int = 0,
        epoch: int = 0,
        acks_all: bool = True,
        replicas: PartitionReplicas | None = None,
        transactional: bool = False,
    ) -> Appended:
        """Append, and acknowledge if ``acks_all``. Raises: the error of the append or of a member of the ISR."""
        who = ProducerAppend(producer or next(self.ids), epoch, sequence, transactional)
        return self.append_as(who, batch(values), acks_all=acks_all, replicas=replicas)

    def end(self, producer: str, raised_epoch: int, *, commit: bool, acks_all: bool = True) -> Appended:
        """Append a marker like ``append``."""
        return self.append_as(marker(producer, raised_epoch, commit=commit), batch([None]), acks_all=acks_all)

    def append_as(
        self,
        who: ProducerAppend,
        rows: pa.RecordBatch,
        *,
        acks_all: bool = True,
        replicas: PartitionReplicas | None = None,
    ) -> Appended:
        """Append like ``append``, as a producer."""
        options = AppendOptions(
            schema=SCHEMA,
            acks_all=acks_all,
            min_insync_replicas=1,
            compression="zstd",
            log_append_time=False,
            producer_expiration_ms=10**12,
        )
        result = append(
            replicas or self.replicas, who, iter([rows]), options, clock=self.clock, copies=SerialRunner()
        )
        if isinstance(result, NotAppended):
            raise result.error
        assert isinstance(result, Appended)
        for error in result.missed.values():
            raise error
        if acks_all:
            advance_high_watermark(replicas or self.replicas, result.next_offset, SerialRunner())
        return result

    def sync(
        self, follower: int, remote: RemoteTail | None = None, *, last_tiered: LastTiered = LastTiered.NEVER
    ) -> Synced:
        options = SyncOptions(copies=SerialRunner(), remote=remote, last_tiered=last_tiered)
        return sync(self.replicas, follower, options)

    def read(self, broker_id: int) -> list[str]:
        """The values below the high watermark for a reader of that replica."""
        replica = self.replicas.replica(broker_id)
        log = replica.log()
        values: list[str] = []
        for link in log.chain:
            for part in read_batches(replica.store, link.file, link.start, min(link.end, log.high_watermark)):
                values += [value.decode() for value in part.column("value").to_pylist()]
        assert len(values) == log.high_watermark - log.local_start
        return values
