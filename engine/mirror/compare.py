"""A topic there and here: the same records at the same offsets, or at which they differ.

Both sides are read once, in the order of offsets, a partition after the other in each of some threads: offset,
timestamp, key, value and headers of each record become a digest, and the digests of ``RANGE`` offsets one of a
range. Of a typed value what was decoded is compared, there and here; of one that was kept as bytes, these.
Compared is where both have something: from the later log start to the earlier end of committed records. Where the
source compacts, a record that is only here is no difference: it was there when it was mirrored.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.plain_values import raw_bytes
from stratalog.engine.driver.report import Failure, Report, Value
from stratalog.engine.formats.typed import TypedValues, canonical
from stratalog.engine.mirror.configs import compacts
from stratalog.engine.mirror.source import (
    MirrorSource,
    SourceBounds,
    SourceRange,
    SourceRead,
    SourceRecord,
    SourceTopic,
)
from stratalog.engine.mirror.typed_topics import check_typed
from stratalog.engine.reading.fetch import fetch
from stratalog.partitions.errors import InvalidCallError, LeaderNotAvailableError, StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.runner import Done

RANGE = 100_000
"""Offsets of which one digest is told."""
_NAMED = 10
"""Differing offsets of a partition that the report names."""
_FETCH_BYTES = 16 * 1024 * 1024
_NOTHING: frozenset[bytes] = frozenset()

Digest = bytes
Digests = Iterator[tuple[int, frozenset[Digest]]]
"""Offset and digests of each record, in the order of offsets: here it has one, there more than one where its value
could have been decoded or kept as it is."""


class RecordsDifferError(StratalogError):
    """The records of a topic are not the same there and here."""

    code = "RECORDS_DIFFER"


@dataclass(slots=True)
class Compared:
    """A partition, compared over ``[start, end)``."""

    key: TopicPartition
    start: int
    end: int
    there: int = 0
    here: int = 0
    """Records."""
    compacted: int = 0
    """Records that are only here, where the source compacts."""
    ranges: int = 0
    equal_ranges: int = 0
    digest: str = ""
    """Of all records here."""
    differences: int = 0
    named: list[str] = field(default_factory=list)
    """Some offsets that differ, and how."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.differences == 0

    def differs(self, offset: int, how: str) -> None:
        """One more offset does."""
        self.differences += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{offset} {how}")


def compare(
    context: Context, source: MirrorSource, names: Sequence[str], values: TypedValues | None = None
) -> Report:
    """Compare topics there and here. A row a partition; one that differs is a failure, which names offsets.
    ``values`` decodes those of the source, where those here are typed.

    Raises: InvalidCallError for no topics, and for typed values without ``values`` or the other way round;
        UnknownTopicOrPartitionError; errors of asking the source.
    """
    if not names:
        raise InvalidCallError("name the topics to compare: --topics a,b")
    with context.run("compare") as run:
        there = source.topics(names)
        image = context.metadata.image()
        for topic_here in map(image.topic, names):
            if values is not None or MIRROR_SOURCE in topic_here.configs:
                check_typed(topic_here, values)
        keys = [(topic.name, partition) for topic in there.values() for partition in range(topic.partitions)]
        bounds = source.bounds(keys)
        for topic, partition in [key for key in keys if key not in bounds]:
            what = f"{topic}-{partition}"
            run.fail(what, LeaderNotAvailableError(f"{what} of the source has no leader, or it does not answer"))

        def one(key: TopicPartition) -> Compared:
            return _compare(context, source, there[key[0]], key, bounds[key], values)

        for outcome in context.threads.run(one, list(bounds)):
            what = f"{outcome.item[0]}-{outcome.item[1]}"
            if not isinstance(outcome, Done):
                run.fail(what, outcome.error)
                continue
            run.rows.append(_row(outcome.value))
            if not outcome.value.equal:
                more = outcome.value.differences - len(outcome.value.named)
                said = ", ".join(outcome.value.named) + (f", and {more} more" if more else "")
                run.failures.append(Failure(what, RecordsDifferError.code, f"offsets that differ: {said}"))
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
    context: Context,
    source: MirrorSource,
    topic: SourceTopic,
    key: TopicPartition,
    bounds: SourceBounds,
    values: TypedValues | None,
) -> Compared:
    image = context.metadata.image()
    present = image.view(image.topic(key[0]).topic_id, key[1])
    end_here = fetch(context, *key, present.log_start_offset, isolation=Isolation.READ_COMMITTED).high_watermark
    start = max(bounds.log_start, present.log_start_offset)
    end = max(start, min(bounds.stable_end, end_here))
    found = Compared(key, start, end)
    if start < end:
        reads = source.read({key: SourceRange(start, end)})
        try:
            _merge(
                found,
                _there(reads, end, values),
                _here(context, key, start, end, decoded=values is not None),
                compacted=compacts(topic.configs),
            )
        finally:
            reads.close()
    if bounds.stable_end > end_here:
        found.differs(end_here, f"and all behind it are only there, up to {bounds.stable_end}")
    if end_here > bounds.log_end:
        found.differs(bounds.log_end, f"and all behind it are only here, up to {end_here}")
    return found


def _merge(found: Compared, there: Digests, here: Digests, *, compacted: bool) -> None:
    """Walk along both sides, offset by offset."""
    end = (found.end, _NOTHING)
    one, other = next(there, end), next(here, end)
    whole = hashlib.blake2b(digest_size=16)
    number, differed = -1, False
    while one[0] < found.end or other[0] < found.end:
        offset = min(one[0], other[0])
        if (offset - found.start) // RANGE != number:
            found.ranges += 1
            found.equal_ranges += number >= 0 and not differed
            number, differed = (offset - found.start) // RANGE, False
        before = found.differences
        if one[0] == offset and other[0] == offset:
            if not one[1] & other[1]:
                found.differs(offset, "is another record")
        elif one[0] == offset:
            found.differs(offset, "is only there")
        elif compacted:
            found.compacted += 1
        else:
            found.differs(offset, "is only here")
        differed = differed or found.differences > before
        if one[0] == offset:
            found.there += 1
            one = next(there, end)
        if other[0] == offset:
            found.here += 1
            whole.update(*other[1])
            other = next(here, end)
    found.equal_ranges += number >= 0 and not differed
    found.digest = whole.hexdigest() if found.here else ""


# ---------------------------------------------------------------------------------------- both sides


def _there(reads: Iterable[SourceRead], end: int, values: TypedValues | None) -> Digests:
    """Raises: the error of a read."""
    for read in reads:
        if read.error is not None:
            raise read.error
        decoded = None if values is None else values.column(read.records.column("value").to_pylist()).to_pylist()
        for number, record in enumerate(records_of(pa.Table.from_batches([read.records]))):
            if record.offset >= end:
                return
            digests = {digest_of(record)}
            if decoded is not None:
                digests.add(digest_of(record._replace(value=canonical(decoded[number]))))
            yield record.offset, frozenset(digests)
        if read.position >= end:
            return


def _here(context: Context, key: TopicPartition, start: int, end: int, *, decoded: bool) -> Digests:
    position = start
    while position < end:
        found = fetch(context, *key, position, max_bytes=_FETCH_BYTES, isolation=Isolation.READ_COMMITTED)
        for record in records_of(found.records, decoded=decoded):
            if record.offset >= end:
                return
            yield record.offset, frozenset({digest_of(record)})
        if found.next_offset == position:
            return
        position = found.next_offset


def records_of(table: pa.Table, *, decoded: bool = False) -> Iterator[SourceRecord]:
    """Records of a fetch, as the source has them. Typed keys and values are text as UTF-8, or JSON; values that
    were ``decoded`` on the way here are their canonical bytes.
    """
    for batch in table.to_batches():
        stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
        for at, name, in_bytes in ((1, "key", raw_bytes), (2, "value", canonical if decoded else raw_bytes)):
            if batch.schema.field(name).type != pa.binary():
                columns[at] = list(map(in_bytes, columns[at]))
        for stamp, offset, key, value, headers in zip(stamps, *columns, strict=True):
            pairs = [(header["key"], header["value"]) for header in headers or ()]
            stamp_ms = None if stamp is None else stamp // 1000
            yield SourceRecord(offset, stamp_ms, key, value, pairs, None)


def digest_of(record: SourceRecord) -> Digest:
    """Of offset, timestamp, key, value and headers; null differs from nothing."""
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    hashed = hashlib.blake2b(
        struct.pack("<qq", record.offset, -1 if record.timestamp_ms is None else record.timestamp_ms)
    )
    for part in parts:
        hashed.update(struct.pack("<q", -1 if part is None else len(part)))
        hashed.update(part or b"")
    return hashed.digest()[:16]
