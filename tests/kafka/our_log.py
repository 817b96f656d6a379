"""The engine, as a ``Log``: a cluster of one broker in memory, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import pyarrow as pa

from stratalog import FoundOffset, OffsetAndMetadata, OffsetSpec, StratalogError, UnknownOffset
from stratalog.engine.driver.report import OperationFailedError, Report
from stratalog.engine.records.transact import BatchTransaction
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import Answer
from stratalog.partitions.records import physical_schema
from tests.kafka.log import LATER_MS, At, Code, Committed, Found, Got, Log, Transaction
from tests.unit.cluster_harness import LiveCluster

P = ParamSpec("P")
R = TypeVar("R")

_SCHEMA = physical_schema()
_NAMED = {
    At.EARLIEST: OffsetSpec.EARLIEST,
    At.LATEST: OffsetSpec.LATEST,
    At.MAX_TIMESTAMP: OffsetSpec.MAX_TIMESTAMP,
    At.EARLIEST_LOCAL: OffsetSpec.EARLIEST_LOCAL,
    At.LATEST_TIERED: OffsetSpec.LAST_TIERED,
    At.EARLIEST_PENDING_UPLOAD: OffsetSpec.EARLIEST_PENDING_UPLOAD,
}


def answers(operation: Callable[P, R]) -> Callable[P, R | Code]:
    """An error's code becomes the answer."""

    @wraps(operation)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R | Code:
        try:
            return operation(*args, **kwargs)
        except OperationFailedError as error:
            (failure,) = error.report.failures
            return failure.code
        except StratalogError as error:
            return error.code

    return answer


class OurLog(Log):
    """A cluster in an empty folder. Its clock does not advance by itself."""

    def __init__(self, folder: Path) -> None:
        live = LiveCluster(folder, brokers=1)
        self.clock = live.clock
        self.cluster = live.cluster
        self.cluster.topics.alter_configs(
            None, {"offsets.topic.replication.factor": "1", "transaction.state.log.replication.factor": "1"}
        )

    @answers
    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster.topics.create(
            topic, partitions=partitions, replication_factor=replication_factor, configs=configs
        )

    @answers
    def create_partitions(self, topic: str, partitions: int) -> None:
        self.cluster.topics.create_partitions(topic, partitions)

    @answers
    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        self.cluster.topics.alter_configs(topic, configs)

    @answers
    def delete_topic(self, topic: str) -> None:
        self.cluster.topics.delete(topic).raise_for_failures()

    @answers
    def append(
        self, topic: str, values: Sequence[str], partition: int = 0, times_ms: Sequence[int] = ()
    ) -> list[int]:
        return _offsets(self.cluster.append_batches(topic, {partition: [_batch(values, times_ms)]}))

    @answers
    def append_as(
        self, producer: int, sequence: int, value: str, topic: str = "t", *, epoch: int = 0
    ) -> list[int]:
        batches = {0: [_batch([value], ())]}
        who = str(producer)
        return _offsets(
            self.cluster.append_batches(topic, batches, producer=who, sequence=sequence, producer_epoch=epoch)
        )

    @answers
    def read(self, topic: str, start: int = 0, partition: int = 0, *, committed: bool = False) -> Got:
        records: dict[int, str] = {}
        position = start
        while True:
            got = self.cluster.fetch(topic, partition, position, isolation=_isolation(committed))
            for offset, value in zip(
                got.records.column("offset").to_pylist(), got.records.column("value").to_pylist(), strict=True
            ):
                records[offset] = value.decode()
            if got.next_offset == position:
                return Got(records, position)
            position = got.next_offset

    @answers
    def list_offsets(self, topic: str, at: At | int, *, committed: bool = False) -> dict[int, int | Found | None]:
        spec = _NAMED[at] if isinstance(at, At) else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)
        found = self.cluster.offsets(topic, spec, _isolation(committed))
        return {partition: _position(answer) for partition, answer in found.items()}

    @answers
    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        report = self.cluster.topics.delete_records(topic, before).raise_for_failures()
        return {int(str(row["partition"])): int(str(row["low_watermark"])) for row in report.rows}

    def retain(self) -> None:
        self.cluster.retain().raise_for_failures()

    def tier(self, topic: str, until: tuple[At, int]) -> None:
        self.cluster.tier([topic]).raise_for_failures()
        self.retain()

    def pass_time(self, ms: int) -> None:
        self.clock.advance_ms(ms)
        self.cluster.tier().raise_for_failures()

    def transaction(self, transactional_id: str, *, anew: bool = False, timeout_ms: int = 60_000) -> Transaction:
        begun = self.cluster.transactions.begin(transactional_id, timeout_ms=timeout_ms)
        return _OurTransaction(self, begun, timeout_ms)

    @answers
    def commit(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        metadata: str = "",
        leader_epoch: int | None = None,
    ) -> None:
        self.cluster.groups.commit(
            group,
            {
                (topic, partition): OffsetAndMetadata(offset, leader_epoch, metadata)
                for partition, offset in offsets.items()
            },
        ).raise_for_failures()

    @answers
    def committed(
        self, group: str, topic: str, partitions: Sequence[int] = (0,), *, require_stable: bool = False
    ) -> dict[int, Committed]:
        found = self.cluster.groups.committed(group, topic, require_stable=require_stable)
        return {
            partition: Committed(committed.offset, committed.metadata, committed.leader_epoch)
            for (_, partition), committed in found.items()
            if partition in partitions
        }

    @answers
    def delete_group(self, group: str) -> None:
        self.cluster.groups.delete(group).raise_for_failures()

    def groups(self) -> set[str]:
        return {str(row["group"]) for row in self.cluster.groups.list().raise_for_failures().rows}


class _OurTransaction(Transaction):
    """Each transaction is a separate incarnation of the producer here."""

    def __init__(self, log: OurLog, transaction: BatchTransaction, timeout_ms: int) -> None:
        self._log, self._transaction, self._timeout_ms = log, transaction, timeout_ms

    @answers
    def append(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        return _offsets(self._transaction.append_batches(topic, {partition: [_batch(values, ())]}))

    @answers
    def commit_offsets(self, group: str, offsets: Mapping[int, int], topic: str) -> None:
        self._transaction.commit_offsets(
            group, {(topic, partition): offset for partition, offset in offsets.items()}
        )

    @answers
    def commit(self) -> None:
        self._transaction.commit().raise_for_failures()

    @answers
    def abort(self) -> None:
        self._transaction.abort().raise_for_failures()

    def time_out(self) -> None:
        self._log.clock.advance_ms(self._timeout_ms)
        self._log.cluster.transactions.finish().raise_for_failures()


def _isolation(committed: bool) -> Isolation:
    return Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED


def _batch(values: Sequence[str], times_ms: Sequence[int]) -> pa.RecordBatch:
    times = times_ms or range(LATER_MS, LATER_MS + len(values))
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([time * 1000 for time in times], pa.int64()).cast(
                _SCHEMA.field("timestamp").type
            ),
            "key": pa.nulls(len(values), pa.binary()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
            "headers": pa.nulls(len(values), _SCHEMA.field("headers").type),
        }
    )


def _offsets(report: Report) -> list[int]:
    (row,) = report.raise_for_failures().rows
    if row["base_offset"] is None:
        return []
    return list(range(int(str(row["base_offset"])), int(str(row["next_offset"]))))


def _position(answer: Answer) -> int | Found | None:
    match answer:
        case UnknownOffset():
            return None
        case FoundOffset(offset, None):
            return offset
        case FoundOffset(offset, time_us):
            assert time_us is not None
            return Found(offset, time_us // 1000)
