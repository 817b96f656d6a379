"""``KafkaTier``: reads the tier of a Kafka cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import pyarrow as pa

from stratalog.bridges.formats.decoder import Decoded
from stratalog.bridges.formats.opening import typed_values
from stratalog.bridges.formats.registry import divided
from stratalog.bridges.kafka_tier.brokers import SourceBrokers
from stratalog.bridges.kafka_tier.committed import committed
from stratalog.bridges.kafka_tier.indexes import parse_leader_epochs
from stratalog.bridges.kafka_tier.layout import (
    IndexKind,
    LayoutOptions,
    OpenSegment,
    RemoteSegmentLayout,
    key_of_file,
    open_layout,
)
from stratalog.bridges.kafka_tier.lineage import LeaderEpochs
from stratalog.bridges.kafka_tier.metadata_log import messages_of
from stratalog.bridges.kafka_tier.plan import (
    SegmentRange,
    TierPartition,
    Unclear,
    is_missed,
    is_open_ended,
    plan_partition,
    within,
)
from stratalog.bridges.kafka_tier.reading import KnownTransactions, TierTask
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from stratalog.bridges.kafka_tier.segment_states import SegmentStates, folded
from stratalog.bridges.kafka_tier.tasks import (
    TierPlan,
    arrow_schema,
    frame_schema,
    packed,
    rows_of,
    rows_of_works,
    split,
)
from stratalog.bridges.kafka_tier.times import end_at, may_hold, start_of_times
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.reading.bounds import Bound, ReadQuery, in_zone
from stratalog.engine.reading.positions import FirstAt
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.isolation import Isolation, isolation_of
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.printable import printable
from stratalog.partitions.runner import Failed, ThreadRunner, values
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.read_only import ReadOnlyStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Key = tuple[str, int]
Epochs = Sequence[tuple[int, int]]
_THREADS = 8
_NO_OPTIONS = StoreOptions()


class TierRange(TypedDict, total=False):
    """The range of a read: the arguments of ``KafkaTier.plan``, ``read`` and ``read_arrow``."""

    start: Bound
    """An offset, offsets by partition, ``FirstAt(time)``, or a time; default: the first clear offset."""
    end: Bound
    """Like ``start``, exclusive; default: after the last clear offset."""
    partitions: Sequence[int] | None
    """Only these partitions; default: all."""
    isolation: Isolation | str
    """``read_committed``: no records of aborted or open transactions; default: ``read_uncommitted``."""


@dataclass(slots=True)
class KafkaTier:
    """The segments that the brokers of a Kafka cluster have uploaded, read without the brokers.

        tier = KafkaTier.open("s3://bucket", layout="aiven", prefix="tier/", metadata="/backup/kafka-logs")
        tier.read(spark, "trips", start=FirstAt("2026-06-01"), end=FirstAt("2026-06-02")).show()

    ``KafkaTier`` writes nothing. Offsets are unclear, and are not read, if the tier has no usable segment for
    them, or no proof that the segment belongs to the log's current history; reports name the unclear offsets.
    """

    store: Store
    layout: RemoteSegmentLayout
    states: SegmentStates
    epochs: Mapping[Key, Epochs] = field(default_factory=dict)
    log_starts: Mapping[Key, int] = field(default_factory=dict)
    registry: Mapping[str, str] = field(default_factory=dict)
    """The configs of a schema registry."""
    brokers: SourceBrokers | None = None
    """The brokers of a running source cluster; None if only the metadata files are available."""
    notes: tuple[str, ...] = ()
    """Notes on gaps in the metadata."""
    _opened: dict[str, OpenSegment] = field(default_factory=dict, repr=False)
    _unusable: dict[str, str] = field(default_factory=dict, repr=False)
    """Segments to ignore because they cannot be opened, by id, with the reason."""

    @classmethod
    def open(
        cls,
        address: str,
        *,
        layout: str,
        metadata: str | None = None,
        bootstrap: str | None = None,
        configs: Mapping[str, str] | None = None,
        prefix: str = "",
        keys: Mapping[str, str] | Mapping[str, bytes] | None = None,
        epochs: Mapping[Key, Epochs] | None = None,
        log_starts: Mapping[Key, int] | None = None,
        storage: StoreOptions = _NO_OPTIONS,
    ) -> Self:
        """Open the tier of a Kafka cluster, whose metadata comes from ``metadata`` or ``bootstrap``. With
        ``bootstrap``, the brokers also report where logs start, and whether they share the history of the tier.

        Args:
            address: the folder or bucket of the tier
            layout: the plugin that writes the tier: aiven, local, or one of an installed package
            metadata: the folder or bucket with the log of __remote_log_metadata: a broker's log folder, or a copy
            bootstrap: brokers of the cluster, comma-separated
            configs: a config of librdkafka, such as security.protocol=SASL_SSL, or schema.registry.url
            prefix: the prefix that the plugin puts before object names
            keys: a private key of the plugin, by key id: a file (in Python also bytes)
            epochs: by topic and partition, the leader epochs of the current history with their first offsets (a
                broker's leader-epoch-checkpoint); default: the epochs of the newest segment
            log_starts: the log starts by topic and partition; default: the start of the first segment
            storage: the object storage server, unless it is Amazon's or Google's

        Raises: InvalidCallError for an unknown layout, a damaged key, missing metadata, or metadata of an unknown
            version; CorruptionError, LogGapError for damaged metadata; StorageError kinds.
        """
        given = {
            name: key if isinstance(key, bytes) else key_of_file(name, key) for name, key in (keys or {}).items()
        }
        opened = open_layout(layout, LayoutOptions(prefix, given))
        notes: list[str] = []
        if (metadata is None) == (bootstrap is None):
            raise InvalidCallError(
                "give either metadata (a folder or bucket) or bootstrap (the addresses of brokers)"
            )
        there, registry = divided(configs)
        brokers = None if bootstrap is None else SourceBrokers(open_source(bootstrap, there))
        if brokers is not None:
            states = folded(brokers.messages(notes))
        else:
            source = ReadOnlyStore(open_store(str(metadata), storage, what="metadata"))
            states = folded(messages_of(source, notes))
        store = ReadOnlyStore(open_store(address, storage, what="address"))
        all_notes = (*notes, *states.notes())
        tier = cls(store, opened, states, dict(epochs or {}), dict(log_starts or {}), registry, brokers, all_notes)
        tier._check_names()
        return tier

    def _check_names(self) -> None:
        for key in [*self.epochs, *self.log_starts]:
            self.topic_id(key[0])

    def topics(self) -> list[str]:
        """The names of topics with known segments."""
        return sorted({one.topic for one in self.states.segments.values()})

    def describe(self) -> Report:
        """Report the offsets of each partition in the tier, and the unclear offsets with the reason. A partition
        whose segments cannot be planned is a failure.
        """
        rows: list[dict[str, str | int | None]] = []
        failures: list[Failure] = []
        notes = list(self.notes)
        for topic in self.topics():
            try:
                partitions = self.partitions(topic)
            except UnknownTopicOrPartitionError as error:  # the brokers have deleted it
                notes.append(str(error))
                continue
            for partition, plan in self._plans(topic, partitions, failures):
                sizes = {piece.segment.segment_id: piece.segment.size_bytes for piece in plan.pieces}
                rows.append(
                    {
                        "topic": topic,
                        "partition": partition,
                        "start": plan.start,
                        "end": plan.end,
                        "segments": len(sizes),
                        "bytes": sum(sizes.values()),
                        "left_out": len(plan.left_out),
                        "unclear": "; ".join(str(one) for one in plan.unclear) or None,
                    }
                )
        return Report("describe tier", rows, failures, notes=tuple(notes))

    def segments(self, topic: str) -> Report:
        """List the segments of a topic with their offsets, sizes, leader epochs and upload states. The list also
        has the offsets that are read from a segment, or the reason why the segment is ignored. A partition whose
        segments cannot be planned is a failure.

        Args:
            topic: the topic

        Raises: see ``plan``.
        """
        rows: list[dict[str, str | int | None]] = []
        failures: list[Failure] = []
        for partition, plan in self._plans(topic, self.partitions(topic), failures):
            refused = plan.unclear[0].reason if plan.unclear and not plan.pieces else None
            for one in self.states.of(self.topic_id(topic), partition):
                used = [f"[{p.start}, {p.end})" for p in plan.pieces if p.segment.segment_id == one.segment_id]
                why = plan.left_out.get(one.segment_id)
                if not used and why is None:
                    why = refused or "its offsets are in another segment, or below the log start"
                rows.append(
                    {
                        "partition": partition,
                        "start": one.start_offset,
                        "end": one.next_offset,
                        "bytes": one.size_bytes,
                        "epochs": ", ".join(str(epoch) for epoch, _ in one.leader_epochs),
                        "state": one.state.name,
                        "segment": one.segment_id,
                        "counts": ", ".join(used) or "no",
                        "why": why,
                    }
                )
        return Report("segments", rows, failures, notes=self.notes)

    def plan(self, topics: str | Sequence[str], **span: Unpack[TierRange]) -> TierPlan:
        """Plan a read of ``start``, ``end`` (offsets, offsets by partition, ``FirstAt(time)``, or times),
        ``partitions`` and ``isolation``. This opens every segment to be read, but reads no records; each
        ``FirstAt`` bound reads part of a segment.

        Raises: UnknownTopicOrPartitionError; InvalidCallError, also for an unknown form of a segment;
        CorruptionError; SourceChangedError; StorageError kinds.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        query = ReadQuery(topics=names, **span)
        found = TierPlan((), (), self.notes)
        for topic in names:
            for partition in self._chosen(topic, query.partitions):
                found += self._planned(topic, partition, query)
        return found

    def plan_all(
        self,
        topic: str,
        partition: int,
        start: int | None,
        isolation: Isolation,
        is_unknown: Callable[[StratalogError], bool] | None = None,
    ) -> TierPlan:
        """Like ``plan``, for all offsets of a partition from ``start`` on (None: all). ``unclear`` has every
        unclear offset, including those before the first and after the last clear offset, and those of segments
        that cannot be opened.

        Raises: see ``plan``; the error of a segment that cannot be opened, if ``is_unknown`` refuses it.
        """
        query = ReadQuery(topics=[topic], partitions=[partition], start=start, isolation=isolation)
        while True:
            pieces = within(self._plan_of(topic, partition).pieces, start, None)
            failed = [one for one in ThreadRunner(_THREADS).run(self.opened, pieces) if isinstance(one, Failed)]
            refused = [one.error for one in failed if is_unknown is not None and not is_unknown(one.error)]
            if refused:
                raise refused[0]
            self._unusable |= {one.item.segment.segment_id: str(one.error) for one in failed}
            if not failed:
                break
        return self._planned(topic, partition, query, whole=True)

    def _planned(self, topic: str, partition: int, query: ReadQuery, *, whole: bool = False) -> TierPlan:
        plan = self._plan_of(topic, partition)
        named = {name: of.get(topic, {}) for name, of in query.named(list(query.topics)).items()}
        of_all = [None if isinstance(bound, Mapping) else bound for bound in (query.first, query.until)]
        low = self._place(plan, named.get("start", {}).get(partition, of_all[0]), "start")
        high = self._place(plan, named.get("end", {}).get(partition, of_all[1]), "end")
        transactions: Mapping[str, KnownTransactions] = {}
        if isolation_of(query.isolation) is Isolation.READ_COMMITTED:
            certain = committed(plan, self.opened, low, high)
            plan, transactions = certain.plan, certain.transactions
        missed = [one for one in plan.unclear if whole or is_missed(one, plan, low, high)]
        beside = [str(one) for one in plan.unclear if one not in missed and is_open_ended(one, plan, low, high)]
        if low is not None and low < (until := min(plan.start, plan.start if high is None else high)):
            missed.append(Unclear(topic, partition, low, until, "the tier begins after them"))
        if high is not None and high > (since := max(plan.end, plan.end if low is None else low)):
            missed.append(Unclear(topic, partition, since, high, "the tier ends before them"))
        pieces = [piece for piece in within(plan.pieces, low, high) if may_hold(piece.segment, query.times)]
        values(ThreadRunner(_THREADS).run(self.opened, pieces))
        tasks: list[TierTask] = []
        for piece in pieces:
            opened, known = self.opened(piece), transactions.get(piece.segment.segment_id)
            part = replace(piece, start=start_of_times(opened, piece, query.times))
            if part.start < part.end:
                tasks += split(TierTask(opened, part, plan.epochs, known, query.times))
        return TierPlan(tuple(tasks), tuple(missed), tuple(beside))

    def read(
        self,
        spark: SparkSession,
        topics: str | Sequence[str],
        *,
        value_format: Decoded | None = None,
        schema_file: str | None = None,
        message: str | None = None,
        fail_on_data_loss: bool = True,
        **span: Unpack[TierRange],
    ) -> DataFrame:
        """Read the records as a DataFrame with the columns ``topic, partition, offset, timestamp, timestampType,
        key, value, headers, leaderEpoch``. Each task of the session reads part of a segment. This works on classic
        sessions and on Spark Connect.

        ``span`` is as for ``plan``. Bounds that are times select records by timestamp; text without a zone is in
        the session's time zone. A warning reports unclear offsets before an open start and after an open end.
        Unclear offsets in between, or a partition without a clear offset, raise LogGapError; with
        ``fail_on_data_loss=False`` they are left out with a warning.

        ``value_format`` decodes values with the schema file, like ``cluster.mirror``. ``value`` is then a struct;
        its field ``_undecoded`` has the bytes of a value that does not match the schema.

        Raises: LogGapError; InvalidCallError for a wrong schema; see ``plan``.
        """
        from stratalog.engine.spark.time_zone import session_zone

        zone = partial(session_zone, spark)
        span["start"], span["end"] = in_zone(span.get("start"), zone), in_zone(span.get("end"), zone)
        values = typed_values(value_format, schema_file, message, self.registry)
        plan = self._certain(topics, span, fail_on_data_loss=fail_on_data_loss)
        schema = frame_schema(values)
        if not plan.tasks:
            return spark.createDataFrame([], schema)
        packs = packed(plan.tasks)
        numbers = spark.range(0, len(packs), 1, len(packs))
        return numbers.mapInArrow(partial(rows_of_works, packs, values), schema)

    def read_arrow(
        self,
        topics: str | Sequence[str],
        *,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
        value_format: Decoded | None = None,
        schema_file: str | None = None,
        message: str | None = None,
        fail_on_data_loss: bool = True,
    ) -> pa.RecordBatchReader:
        """Read records in this process, without Spark. The records of a partition come in offset order. The
        columns and arguments are those of ``read``.

        Args:
            start: an offset, offsets by partition (0:1000,3:20), first-at:TIME (the first record at or after TIME,
                and all later offsets), or a time (the earliest timestamp); default: the first clear offset
            end: where to stop, exclusive, in the same forms as start (default: after the last clear offset)
            partitions: only these partitions (default: all)
            isolation: read_committed: no records of aborted or open transactions (default: read_uncommitted)
            value_format: decode values with the schema file (default: keep bytes)
            schema_file: for avro a schema, for json a type as DDL, for protobuf a descriptor set
            message: for protobuf: the message type of the values in the descriptor set
            fail_on_data_loss: False: leave out unclear offsets, with a warning, instead of failing

        Raises: see ``read``.
        """
        values = typed_values(value_format, schema_file, message, self.registry)
        span = TierRange(start=start, end=end, partitions=partitions, isolation=isolation)
        plan = self._certain(topics, span, fail_on_data_loss=fail_on_data_loss)
        rows = (rows for task in plan.tasks for rows in rows_of(task, values))
        return pa.RecordBatchReader.from_batches(arrow_schema(values), rows)

    def _certain(self, topics: str | Sequence[str], span: TierRange, *, fail_on_data_loss: bool) -> TierPlan:
        plan = self.plan(topics, **span)
        gaps = [str(one) for one in plan.unclear]
        if gaps and fail_on_data_loss:
            more = "" if len(gaps) <= 3 else f" (and {len(gaps) - 3} more)"
            raise LogGapError(
                f"the tier has unclear offsets: {'; '.join(gaps[:3])}{more}. Read these through the brokers, or "
                "leave them out with fail_on_data_loss=False"
            )
        for note in [*gaps, *plan.notes]:
            warnings.warn(printable(f"left out: {note}"), stacklevel=3)
        return plan

    # ------------------------------------------------------------------------------ one partition

    def opened(self, piece: SegmentRange) -> OpenSegment:
        """The segment of a piece, opened on first use."""
        segment = piece.segment
        if segment.segment_id not in self._opened:
            self._opened[segment.segment_id] = self.layout.open(self.store, segment)
        return self._opened[segment.segment_id]

    def topic_id(self, topic: str) -> str:
        """The id of the topic's current incarnation. Raises: UnknownTopicOrPartitionError."""
        ids = self.states.topic_ids(topic)
        if self.brokers is not None and ids:
            if (now := self.brokers.topic_id(topic)) in ids:
                return now
            raise UnknownTopicOrPartitionError(
                f"the topic {topic!r} of the brokers (id {now}) has no tiered segments: the tier has segments of "
                f"a deleted topic of this name ({', '.join(sorted(ids))}); to read those, open the tier with "
                "metadata= and without bootstrap="
            )
        alive = {one: when for one, when in ids.items() if self._alive(one)} or ids
        if not alive:
            known = self.topics()
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no segments in the tier{did_you_mean(topic, known)}"
            )
        return max(alive, key=lambda one: alive[one])

    def _alive(self, topic_id: str) -> bool:
        """Whether the topic with that id has a segment that is not deleted. (Several topics may have had that
        name.)
        """
        deleted, partitions = SegmentState.DELETE_SEGMENT_FINISHED, self.states.deleted_partitions
        its = [one for one in self.states.segments.values() if one.topic_id == topic_id]
        return any(one.state is not deleted and (topic_id, one.partition) not in partitions for one in its)

    def partitions(self, topic: str) -> list[int]:
        """The partitions with segments. Raises: UnknownTopicOrPartitionError."""
        topic_id = self.topic_id(topic)
        return sorted({one.partition for one in self.states.segments.values() if one.topic_id == topic_id})

    def _chosen(self, topic: str, partitions: Sequence[int] | None) -> list[int]:
        known = self.partitions(topic)
        if partitions is None:
            return known
        if missing := sorted(set(partitions) - set(known)):
            raise UnknownTopicOrPartitionError(f"topic {topic!r} has no segments of its partitions {missing}")
        return sorted(set(partitions))

    def _plans(
        self, topic: str, partitions: Sequence[int], failures: list[Failure]
    ) -> Iterator[tuple[int, TierPartition]]:
        """The plan of each partition; adds the partitions that cannot be planned to ``failures``."""
        for partition in partitions:
            try:
                yield partition, self._plan_of(topic, partition)
            except StratalogError as error:
                failures.append(Failure.of(f"{topic}-{partition}", error))

    def _plan_of(self, topic: str, partition: int) -> TierPartition:
        segments = self.states.of(self.topic_id(topic), partition)
        epochs = self._epochs_of(topic, partition, segments)
        start = self.log_starts.get((topic, partition))
        if start is None and self.brokers is not None:
            start = self.brokers.log_start((topic, partition))
        plan = plan_partition(topic, partition, segments, self._refused(), epochs, start)
        return plan if self.brokers is None else self.brokers.confirmed(plan)

    def _refused(self) -> dict[str, str]:
        """The segments to ignore, by id, with the reason."""
        return self.states.refused() | self._unusable

    def _epochs_of(self, topic: str, partition: int, segments: Sequence[RemoteLogSegment]) -> LeaderEpochs:
        """The given epochs, or the epochs of the finished segment that has the newest epoch."""
        if (given := self.epochs.get((topic, partition))) is not None:
            return LeaderEpochs(tuple((int(epoch), int(start)) for epoch, start in given))
        refused, done = self._refused(), SegmentState.COPY_SEGMENT_FINISHED
        finished = [one for one in segments if one.state is done and one.segment_id not in refused]
        if not finished:
            return LeaderEpochs(segments[0].leader_epochs if segments else ((0, 0),))
        newest = max(finished, key=lambda one: (one.leader_epochs[-1][0], one.end_offset))
        data = self.opened(SegmentRange(newest, newest.start_offset, newest.next_offset)).index(
            IndexKind.LEADER_EPOCH
        )
        epochs = LeaderEpochs(parse_leader_epochs(data, newest))
        if epochs.ranges_of(newest) != [(newest.start_offset, newest.next_offset)]:
            raise CorruptionError(f"{newest}: its leader epochs differ from those of its metadata")
        return epochs

    def _place(self, plan: TierPartition, bound: object, name: str) -> int | None:
        match bound:
            case None:
                return None
            case int() if not isinstance(bound, OffsetSpec):
                return bound
            case FirstAt():
                if not plan.pieces:
                    return None  # no record gives the offset of a time, so every offset may be after it
                return end_at(plan, self.opened, bound.timestamp_us)
        raise InvalidCallError(
            f"{name} = {bound!r}: give an offset, a time, FirstAt(time), offsets by partition, or None"
        )
