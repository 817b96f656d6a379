"""Compares a topic in Kafka with its mirror, and finds the offsets at which they differ.

Some threads read both sides once, in the order of offsets, and compare them as columns (``compared``): offset,
timestamp, key, value and headers of each record. For typed values, decoded values are compared, and the bytes of
undecoded ones. The range is from the later log start to the earlier end of committed records. If the source or the
topic here compacts, a record that only one side has is not a difference if a rule explains it (``one_sided``).
Offsets that are unknown because the source is gone are not compared; notes name them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.bridges.formats.typed import TypedValues, canonical
from stratalog.bridges.mirror.compared import DECODED, Compared
from stratalog.bridges.mirror.configs import compacts
from stratalog.bridges.mirror.key_places import KeyPlaces, note_of_keys
from stratalog.bridges.mirror.one_sided import OneSided, Sides
from stratalog.bridges.mirror.renamed import names_here, renamed, under_names_here
from stratalog.bridges.mirror.rows import NO_RECORDS, offsets_of
from stratalog.bridges.mirror.source import (
    MirrorSource,
    SourceBounds,
    SourceRange,
    SourceRead,
    SourceRecord,
    SourceTopic,
)
from stratalog.bridges.mirror.topics import check_typed
from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.plain_values import raw_bytes, raw_column
from stratalog.engine.driver.report import Failure, Report, Value
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.fetch import fetch
from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import binaries
from stratalog.partitions.errors import InvalidCallError, LeaderNotAvailableError, StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.records import HEADERS, TIMESTAMP
from stratalog.partitions.runner import Done

_FETCH_BYTES = 16 * 1024 * 1024
_COLUMNS = "offset", "timestamp", "key", "value", "headers"

Batches = Iterator[tuple[pa.RecordBatch, int, str | None]]
"""Records of one side in the order of offsets, the offset up to which the records are complete, and the reason if
they are unknown.
"""


class RecordsDifferError(StratalogError, code="RECORDS_DIFFER"):
    """The records of a topic in Kafka differ from the records here."""


def compare(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    source: MirrorSource,
    names: Sequence[str],
    values: TypedValues | None = None,
) -> Report:
    """Compare topics, given by their names in Kafka, with their mirrors. The report has one row per partition. A
    partition that differs is a failure, which names offsets. ``values`` decodes the source's values if the values
    here are typed.

    Raises: InvalidCallError if no topic is given, if typed values are compared without ``values``, or other values
    with it; UnknownTopicOrPartitionError; errors from the source.
    """
    if not names:
        raise InvalidCallError("name the topics to compare")
    with execution.run("compare") as run:
        of_source = source.topics(names)
        image = metadata.image()
        known = names_here(image, of_source, {})
        there = {here: renamed(of_source[name], here) for name, here in known.items()}
        source = under_names_here(source, known)
        for topic_here in map(image.topic, there):
            if values is not None or MIRROR_SOURCE in topic_here.configs:
                check_typed(topic_here, values)
        keys = [(topic.name, partition) for topic in there.values() for partition in range(topic.partitions)]
        bounds = source.bounds(keys)
        for topic, partition in [key for key in keys if key not in bounds]:
            what = f"{topic}-{partition}"
            run.fail(
                what, LeaderNotAvailableError(f"{what} of the source has no leader, or the leader does not answer")
            )

        def one(key: TopicPartition) -> Compared:
            def by_rules() -> tuple[Compared, int]:
                return _compare(
                    metadata, storage, execution.clock, memory, source, there[key[0]], key, bounds[key], values
                )

            found, generation = by_rules()
            while generation < metadata.image().view(image.topic(key[0]).topic_id, key[1]).generation:
                found, generation = by_rules()  # a rule has removed records meanwhile
            return found

        places: dict[str, list[KeyPlaces]] = {}
        for outcome in storage.threads.run(one, list(bounds)):
            what = f"{outcome.item[0]}-{outcome.item[1]}"
            if not isinstance(outcome, Done):
                run.fail(what, outcome.error)
                continue
            run.rows.append(_row(outcome.value))
            run.notes += [f"not compared: {why}" for why in dict.fromkeys(outcome.value.unknown)]
            if outcome.value.places is not None:
                places.setdefault(outcome.item[0], []).append(outcome.value.places)
            if not outcome.value.equal:
                more = outcome.value.differences - len(outcome.value.named)
                names = ", ".join(outcome.value.named) + (f", and {more} more" if more else "")
                run.failures.append(Failure(what, RecordsDifferError.code, f"offsets that differ: {names}"))
        for name, of_topic in places.items():
            partitioner = topic_config_of(image, image.topic(name)).partitioner
            if (note := note_of_keys(name, partitioner, of_topic)) is not None:
                run.notes.append(note)
        run.notes += source.notes()
        run.rows.sort(key=lambda row: (str(row["topic"]), int(row["partition"] or 0)))
    run.totals |= {name: sum(int(row[name] or 0) for row in run.rows) for name in ("there", "here", "differences")}
    return run.report()


def _row(found: Compared) -> dict[str, Value]:
    return {
        "topic": found.key[0],
        "partition": found.key[1],
        "start": found.start,
        "end": found.end,
        "there": found.there,
        "here": found.here,
        "compacted": found.compacted,
        "ranges": found.ranges,
        "equal_ranges": found.equal_ranges,
        "digest": found.digest,
        "differences": found.differences,
    }


def _compare(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    source: MirrorSource,
    topic: SourceTopic,
    key: TopicPartition,
    bounds: SourceBounds,
    values: TypedValues | None,
) -> tuple[Compared, int]:
    """The comparison, and the generation of the rules here by which it explains differences."""
    image = metadata.image()
    present = image.view(image.topic(key[0]).topic_id, key[1])
    end_here = fetch(
        metadata, storage, clock, memory, *key, present.log_start_offset, isolation=Isolation.READ_COMMITTED
    ).high_watermark
    start = max(bounds.log_start, present.log_start_offset)
    end = max(start, min(bounds.stable_end, end_here))
    rules = present.rules
    one_sided = OneSided(compacts(topic.configs), rules[-1].rule if rules else None)
    found = Compared(key, start, end, one_sided.possible)
    if MIRROR_SOURCE in image.topic(key[0]).configs:
        found.places = KeyPlaces(key[1], topic.partitions)

    def sides() -> Iterator[Sides]:
        reads = source.read({key: SourceRange(start, end)})
        try:
            there = _Side(_there(reads, values))
            here = _Side(_here(metadata, storage, clock, memory, key, start, end, decoded=values is not None))
            position = start
            while position < end:
                position = min(there.read_on(position, end), here.read_on(position, end))
                both = there.take(position), here.take(position)
                if there.unknown is None:
                    found.add(*both)
                    yield both
                else:
                    found.unknown.append(there.unknown)
        finally:
            reads.close()

    def later() -> Iterator[pa.RecordBatch]:
        now = source.bounds([key]).get(key, bounds)
        if now.stable_end > end:
            reads = source.read({key: SourceRange(max(end, now.log_start), now.stable_end)})
            try:
                for records, _, unknown in _there(reads, None):
                    if unknown is not None:
                        found.unknown.append(unknown)
                    yield records
            finally:
                reads.close()

    if start < end and one_sided.possible:
        for offset, how in one_sided.explained(start, end, sides(), later()):
            found.settle(offset, how)
    elif start < end:
        deque(sides(), maxlen=0)
    if bounds.stable_end > end_here:
        found.differs(end_here, f"and all later ones up to {bounds.stable_end} are only in Kafka")
    if end_here > bounds.log_end:
        found.differs(bounds.log_end, f"and all later ones up to {end_here} are only here")
    return found, present.generation


# ---------------------------------------------------------------------------------------- both sides


class _Side:
    """Records of one side that were read but not compared yet."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._held: pa.RecordBatch = NO_RECORDS
        self._position = 0
        self.unknown: str | None = None
        """The reason why the loaded records are unknown."""

    def read_on(self, position: int, end: int) -> int:
        """The offset, after ``position`` and at most ``end``, up to which all records are loaded."""
        while self._position <= position:
            self._held, self._position, self.unknown = next(self._batches, (NO_RECORDS, end, None))
        return min(self._position, end)

    def take(self, end: int) -> pa.RecordBatch:
        """Remove and return the records before ``end``."""
        until = int(np.searchsorted(offsets_of(self._held), end))
        taken, self._held = self._held.slice(0, until), self._held.slice(until)
        return taken


def _there(reads: Iterable[SourceRead], values: TypedValues | None) -> Batches:
    """Read on both sides. Raises: the error of a read."""
    for read in reads:
        if read.error is not None:
            raise read.error
        records = read.records
        if values is not None:
            decoded = values.column(records.column("value").to_pylist()).to_pylist()
            records = records.append_column(DECODED, binaries(list(map(canonical, decoded))))
        yield records, read.position, read.unknown


def _here(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    key: TopicPartition,
    start: int,
    end: int,
    *,
    decoded: bool,
) -> Batches:
    position = start
    while position < end:
        ports, isolation = (metadata, storage, clock, memory), Isolation.READ_COMMITTED
        found = fetch(*ports, *key, position, max_bytes=_FETCH_BYTES, isolation=isolation)
        if found.next_offset == position:
            return
        for batch in found.records.select(_COLUMNS).to_batches():
            if batch.num_rows:
                records = _as_there(batch, canonical if decoded else raw_bytes)
                yield records, int(offsets_of(records)[-1]) + 1, None
        position = found.next_offset
        yield NO_RECORDS, position, None


def _as_there(records: pa.RecordBatch, in_bytes: Callable[[object], bytes | None]) -> pa.RecordBatch:
    """Records of a fetch in the form of a source: times in milliseconds, keys and values as bytes."""
    stamps = records.column("timestamp").cast(pa.timestamp("us"))
    columns = [
        records.column("offset"),
        pc.floor_temporal(stamps, unit="millisecond").cast(pa.int64()).cast(TIMESTAMP),
        raw_column(records.column("key")),
        _bytes_of(records.column("value"), in_bytes),
        records.column("headers").cast(HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, list(_COLUMNS))


def _bytes_of(column: pa.Array, in_bytes: Callable[[object], bytes | None]) -> pa.Array:
    return column if column.type == pa.binary() else binaries(list(map(in_bytes, column.to_pylist())))


def records_of(table: pa.Table) -> Iterator[SourceRecord]:
    """Records of a fetch in the form of a source. Typed keys and values are UTF-8 text, or JSON."""
    for batch in table.to_batches():
        stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [
            batch.column("offset").to_pylist(),
            raw_column(batch.column("key")).to_pylist(),
            raw_column(batch.column("value")).to_pylist(),
            batch.column("headers").to_pylist(),
        ]
        for stamp, offset, key, value, headers in zip(stamps, *columns, strict=True):
            pairs = [(header["key"], header["value"]) for header in headers or ()]
            stamp_ms = None if stamp is None else stamp // 1000
            yield SourceRecord(offset, stamp_ms, key, value, pairs, None)
