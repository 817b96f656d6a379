"""The tier as a source of a mirror: segments as far as they are certain, and the brokers for everything else.

``TieredSource`` is a ``MirrorSource``. It reads committed records. Clear offsets come from segments, which tasks
read concurrently. Unclear offsets, and offsets after the tier, come from the brokers. If a segment cannot be read,
its offsets also come from the brokers. Each such range is a note of the report, with the reason.

``offline``: the cluster is gone. Offsets whose records are unknown become gaps, and each gap gets a note. A gap is
final, so an error that a later run may not have (storage that does not answer, a key that was not given) is the
error of its partition, and not a gap.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.bridges.kafka_tier.layout import MissingKeyError
from stratalog.bridges.kafka_tier.lineage import LeaderEpochs
from stratalog.bridges.kafka_tier.options import KafkaTierOptions
from stratalog.bridges.kafka_tier.reading import TierTask, read_task
from stratalog.bridges.kafka_tier.tasks import TierPlan
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.rows import NO_RECORDS, SOURCE_SCHEMA, offsets_of
from stratalog.bridges.mirror.source import (
    MirrorSource,
    SourceBounds,
    SourceGroups,
    SourcePart,
    SourceRange,
    SourceRead,
    SourceTopic,
)
from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.errors import (
    EnvironmentUnusableError,
    OffsetOutOfRangeError,
    RetriableError,
    SourceChangedError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.records import HEADERS
from stratalog.partitions.store import Store, open_store

UNKNOWN_CLUSTER = "unknown"
"""The cluster id in ``mirror.source`` if neither the metadata nor an earlier mirror has it."""
_UNKNOWN_END = (1 << 63) - 1
_CLUSTER_ID = re.compile(rb"^cluster\.id=([A-Za-z0-9_.-]{1,255})\s*$", re.MULTILINE)
_UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class TierPart:
    """See ``stratalog.bridges.mirror.source.SourcePart``."""

    task: TierTask

    @property
    def start(self) -> int:
        return self.task.piece.start

    @property
    def end(self) -> int:
        return self.task.piece.end

    @property
    def leader_epoch(self) -> int | None:
        return self.task.epochs.epoch_at(self.start - 1)

    def read(self) -> Iterator[SourceRead]:
        key = (self.task.topic, self.task.partition)
        for rows in read_task(self.task):
            records = source_rows(rows)
            yield SourceRead(key, records, int(offsets_of(records)[-1]) + 1, from_tier=True)
        yield SourceRead(key, NO_RECORDS, self.end, from_tier=True)


def source_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Records of a segment as columns of ``SOURCE_SCHEMA``; a record without headers has null."""
    headers = rows.column("headers")
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    some = pc.any(pc.greater(counts, 0)).as_py()
    headers = pc.if_else(pc.greater(counts, 0), headers, None) if some else pa.nulls(rows.num_rows, HEADERS)
    columns = [rows.column(name) for name in ("offset", "timestamp", "key", "value")]
    columns += [headers.cast(HEADERS), rows.column("leaderEpoch")]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


class TieredSource:
    """See ``stratalog.bridges.mirror.source.MirrorSource``. ``brokers`` None: the cluster is gone.
    ``cluster_id_of`` then gives the cluster id for a topic id, from an earlier mirror; None if there was none.
    """

    def __init__(
        self,
        tier: KafkaTier | None,
        brokers: MirrorSource | None,
        metadata: Store | None = None,
        cluster_id_of: Callable[[str], str | None] = lambda _: None,
        planned: Mapping[TopicPartition, TierPlan] | None = None,
    ) -> None:
        """``tier`` is None in a task, which has the plans of its partitions."""
        self._tier, self._brokers = tier, brokers
        self._metadata, self._cluster_id_of = metadata, cluster_id_of
        self._planned = dict(planned or {})
        self._lock = threading.Lock()
        self._notes: dict[str, None] = {}

    def __reduce__(self) -> tuple[Callable[..., MirrorSource], tuple[object, ...]]:
        return _in_task, (self._brokers, self._planned)

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        if self._brokers is not None:
            return self._brokers.topics(names)
        assert self._tier is not None
        found = {}
        for name in names:
            topic_id = self._tier.topic_id(name)
            count = self._tier.partitions(name)[-1] + 1
            cluster_id = self._cluster_id_of(topic_id) or self._cluster_id() or UNKNOWN_CLUSTER
            found[name] = SourceTopic(name, f"{cluster_id}/{topic_id}", count, _UNLIMITED)
            self._note(
                f"{name}: the cluster is not read (--offline): its configs, consumer groups and later partitions "
                "are unknown"
            )
        return found

    def _cluster_id(self) -> str | None:
        """The cluster id from ``meta.properties`` in the broker's log folder, if the metadata is there."""
        try:
            data = b"" if self._metadata is None else self._metadata.read("meta.properties")
        except (FileNotFoundError, StratalogError):
            return None
        found = _CLUSTER_ID.search(data)
        return None if found is None else found[1].decode()

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        if self._brokers is not None:
            return self._brokers.bounds(keys)
        found = {}
        for key in keys:
            plan = self._plan(key, SourceRange(0, _UNKNOWN_END))
            start = plan.tasks[0].piece.start if plan.tasks else 0
            end = plan.tasks[-1].piece.end if plan.tasks else 0
            for one in plan.unclear:
                if one.end <= start or one.start >= end:
                    self._note(f"the tier does not show whether there were records at {one}")
            self._note(f"{key[0]}-{key[1]}: it is unknown whether the source had records at or after offset {end}")
            found[key] = SourceBounds(start, end, _UNKNOWN_END)
        return found

    def parts(self, key: TopicPartition, wanted: SourceRange) -> Sequence[SourcePart]:
        plan = self._plan(key, wanted)
        if _denied(plan, wanted):
            return ()
        found: list[TierPart] = []
        at = wanted.start
        for task in _within(plan, wanted):
            if task.piece.start != at:
                break
            found.append(TierPart(task))
            at = task.piece.end
        return found

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        """Reads the parts of the tier first, and then everything after the tier."""
        rest: dict[TopicPartition, SourceRange] = {}
        for key, wanted in ranges.items():
            plan = self._plan(key, wanted)
            if _denied(plan, wanted):
                what = f"{key[0]}-{key[1]}: the tier does not have the history of epoch {wanted.leader_epoch}"
                yield SourceRead(key, NO_RECORDS, wanted.start, OffsetOutOfRangeError(what))
                continue
            left: SourceRange | None = wanted
            for task in _within(plan, wanted):
                if left is not None and task.piece.start > left.start:
                    left = yield from self._unclear(key, left, task.piece.start, _why(plan, left.start))
                if left is not None:
                    left = yield from self._part(key, left, task)
            if left is not None and left.start < left.end:
                rest[key] = left
                if why := _why(plan, left.start):
                    yield SourceRead(key, NO_RECORDS, left.start, notes=(self._how(why),))
        if self._brokers is not None:
            if rest:
                yield from self._brokers.read(rest)
            return
        for key, left in rest.items():
            yield SourceRead(key, NO_RECORDS, left.end, unknown=_unknown(key, left.start, left.end, ""))

    def _part(
        self, key: TopicPartition, left: SourceRange, task: TierTask
    ) -> Generator[SourceRead, None, SourceRange | None]:
        """Reads a part of the tier; offsets that the tier cannot provide come from the brokers. Returns the rest
        of the range; None after an error.
        """
        position = left.start
        try:
            for read in TierPart(task).read():
                yield read
                position = read.position
        except StratalogError as error:
            if not self._is_unknown(error):
                yield SourceRead(key, NO_RECORDS, position, error)
                return None
            here = _after(left, position, task.epochs)
            why = f"{key[0]}-{key[1]} offsets [{position}, {task.piece.end}): {error.code}: {error}"
            return (yield from self._unclear(key, here, task.piece.end, why))
        return _after(left, task.piece.end, task.epochs)

    def _unclear(
        self, key: TopicPartition, left: SourceRange, end: int, why: str
    ) -> Generator[SourceRead, None, SourceRange | None]:
        """The records up to ``end`` through the brokers; offline they are gaps."""
        end = min(end, left.end)
        yield SourceRead(key, NO_RECORDS, left.start, notes=(self._how(why),) if why else ())
        if self._brokers is None:
            yield SourceRead(key, NO_RECORDS, end, unknown=_unknown(key, left.start, end, why))
            return replace(left, start=end, leader_epoch=None)
        epoch = left.leader_epoch
        with closing(self._brokers.read({key: replace(left, end=end)})) as reads:
            for read in reads:
                if read.error is not None:
                    yield read
                    return None
                until = int(offsets_of(read.records).searchsorted(end))
                read = replace(read, records=read.records.slice(0, until), position=min(read.position, end))
                epochs = read.records.column("leader_epoch").drop_null()
                epoch = epochs[-1].as_py() if len(epochs) else epoch
                yield read
                if read.position >= end:
                    break
        return replace(left, start=end, leader_epoch=epoch)

    def _is_unknown(self, error: StratalogError) -> bool:
        """Whether this tier will never know the records, or the brokers have them."""
        if self._brokers is not None or isinstance(error, SourceChangedError):
            return True
        return not isinstance(error, RetriableError | MissingKeyError | EnvironmentUnusableError)

    def _how(self, why: str) -> str:
        return f"unknown, so left as gaps: {why}" if self._brokers is None else f"through the brokers: {why}"

    def group_offsets(self, topics: Sequence[str]) -> SourceGroups:
        return SourceGroups({}) if self._brokers is None else self._brokers.group_offsets(topics)

    def notes(self) -> Sequence[str]:
        return [*self._notes, *([] if self._tier is None else self._tier.notes)]

    def close(self) -> None:
        if self._brokers is not None:
            self._brokers.close()

    def _note(self, text: str) -> None:
        self._notes.setdefault(text)

    def _plan(self, key: TopicPartition, wanted: SourceRange) -> TierPlan:
        """The plan of a partition from the first requested range on."""
        if self._tier is None:
            return self._planned.get(key, TierPlan((), (), ()))
        with self._lock:
            if key not in self._planned:
                self._planned[key] = self._new_plan(self._tier, key, wanted)
            return self._planned[key]

    def _new_plan(self, tier: KafkaTier, key: TopicPartition, wanted: SourceRange) -> TierPlan:
        try:
            if key[1] in tier.partitions(key[0]):
                start = None if self._brokers is None else wanted.start
                return tier.plan_all(*key, start, Isolation.READ_COMMITTED, self._is_unknown)
            why = "it has no segments in the tier"
        except UnknownTopicOrPartitionError as error:
            why = str(error)
        except StratalogError as error:
            if self._brokers is None:
                raise
            why = f"{error.code}: {error}"
        self._note(f"through the brokers: {key[0]}-{key[1]}: {why}")
        return TierPlan((), (), ())


def open_tiered(
    options: KafkaTierOptions, bootstrap: str | None, configs: Mapping[str, str], image: ClusterImage
) -> MirrorSource:
    """The brokers and their tier, or without ``bootstrap`` only the tier; ``image`` has earlier mirrors.

    Raises: see ``KafkaTierOptions.open``.
    """
    tier = options.open(bootstrap, None if bootstrap is None else configs)
    if bootstrap is not None:
        return TieredSource(tier, open_source(bootstrap, configs))
    mirrors = (one.configs.get(MIRROR_SOURCE, "").rpartition("/") for one in image.topics.values())
    known = {topic_id: cluster_id for cluster_id, _, topic_id in mirrors}
    return TieredSource(tier, None, open_store(str(options.metadata), options.storage, what="metadata"), known.get)


def _in_task(brokers: MirrorSource | None, planned: Mapping[TopicPartition, TierPlan]) -> MirrorSource:
    return TieredSource(None, brokers, planned=planned)


def _within(plan: TierPlan, wanted: SourceRange) -> Iterator[TierTask]:
    """The tasks of a range, in order, cut to the range."""
    for task in plan.tasks:
        start, end = max(task.piece.start, wanted.start), min(task.piece.end, wanted.end)
        if start < end:
            yield replace(task, piece=replace(task.piece, start=start, end=end))


def _denied(plan: TierPlan, wanted: SourceRange) -> bool:
    """Whether the tier's history up to the range lacks the epoch of the record before it (as in KIP-320)."""
    if wanted.leader_epoch is None or not plan.tasks:
        return False
    starts = plan.tasks[0].epochs.starts
    later = [start for epoch, start in starts if epoch > wanted.leader_epoch]
    return bool(later) and wanted.start > later[0]


def _why(plan: TierPlan, offset: int) -> str:
    """The unclear offsets at a position, with the reason."""
    found = [str(one) for one in plan.unclear if one.start <= offset < one.end]
    return "; ".join(found)


def _unknown(key: TopicPartition, start: int, end: int, why: str) -> str:
    return why or f"{key[0]}-{key[1]} offsets [{start}, {end}) are not in the tier"


def _after(left: SourceRange, position: int, epochs: LeaderEpochs) -> SourceRange:
    return replace(left, start=position, leader_epoch=epochs.epoch_at(position - 1))
