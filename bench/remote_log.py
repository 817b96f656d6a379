"""Opens the remote table of a topic, and plans a read of all of it and the next uploads, over a thousand, ten
thousand, and a hundred thousand segments, compared with Delta's own listing of the same table."""

from __future__ import annotations

import json
import random
from functools import partial

from deltalake import DeltaTable

from bench.bench import Bench
from bench.measuring import in_turn, seconds_of
from bench.table import Limit, Line
from stratalog.engine.reading.look import remote_pieces
from stratalog.engine.reading.plan import readable_pieces
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import physical_schema
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.plan import expired_segments
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded

SIZES = (1_000, 10_000, 100_000)
PARTITIONS = 10
RECORDS = 10
"""The number of records of each segment."""
SECONDS = 10.0
"""The seconds within which the largest table must be opened and planned."""
GROWTH = 12.0
"""The greatest allowed ratio of times for ten times the segments: ten, plus the noise of two measurements."""
NOTE = (
    "A new process reads the table's log, folds it, plans a read of all offsets, and finds expired segments. The "
    "peer is deltalake's list of the same files."
)
_LINEAGE = Lineage([(1, 0)])
_DEFAULTS = StoreOptions()


def remote_log(bench: Bench) -> list[Line]:
    """Measure on a folder: a bucket would only add a handful of requests."""
    lines: list[Line] = []
    before: float | None = None
    for count in SIZES:
        folder = bench.options.folder / f"remote-{count}"
        folder.mkdir(parents=True)
        table = filled(LocalStore(str(folder)), count)
        plan, listing = partial(_plan, table, count), partial(_list, table)
        ours, peer = in_turn(partial(seconds_of, plan), partial(seconds_of, listing))
        last = count == SIZES[-1]
        limit = Limit(SECONDS, at_most=True) if last else None
        what = f"remote log, {count:,} segments: open and plan; deltalake lists"
        lines.append(Line(what, f"{ours:.3f} s", f"{peer:.3f} s", ours if last else None, limit, NOTE))
        if before is not None:
            ratio = ours / before
            lines.append(
                Line("    against a tenth of them", f"{ours:.3f} s", f"{before:.3f} s", ratio, Limit(GROWTH, True))
            )
        before = ours
    return lines


def _list(table: DeltaTopicTable) -> None:
    DeltaTable(table.uri).file_uris()


def _plan(table: DeltaTopicTable, count: int) -> None:
    log = table.load()
    planned = 0
    for partition in log.segments:
        remote = remote_pieces(table.remote, table.folder, log.of_partition(partition), _LINEAGE)
        planned += len(readable_pieces(str(partition), remote, [], 0, log.end(partition) or 0))
    if planned != count or expired_segments(log, dict.fromkeys(log.segments, 0)):
        raise AssertionError(f"{planned} of {count} segments are planned")


def filled(store: Store, count: int, options: StoreOptions = _DEFAULTS) -> DeltaTopicTable:
    """A table that lists a number of segments, after a checkpoint; the objects do not exist."""
    table = DeltaTopicTable(
        store,
        topic="t",
        topic_id="f" * 32,
        cluster_id="bench",
        options=options,
        clock=SystemClock(),
        rng=random.Random(0),
    )
    table.ensure(physical_schema())
    uploads = [
        _uploaded(partition, number * RECORDS)
        for partition in range(PARTITIONS)
        for number in range(count // PARTITIONS)
    ]
    lineages = dict.fromkeys(range(PARTITIONS), _LINEAGE)
    table.commit(uploads, (), Histories(lineages, lambda: dict.fromkeys(lineages, Present(1))))
    table.clean_log()
    return table


def _uploaded(partition: int, base: int) -> Uploaded:
    segment = RemoteSegment(partition, DataName(base, base + RECORDS, 1), base + RECORDS, 100)
    low = {"partition": partition, "offset": base, "timestamp": "2013-01-01T00:00:00.000Z"}
    high = {"partition": partition, "offset": base + RECORDS - 1, "timestamp": "2013-01-01T00:00:01.000Z"}
    nulls = dict.fromkeys(low, 0)
    statistics = {"numRecords": RECORDS, "minValues": low, "maxValues": high, "nullCount": nulls}
    return Uploaded(segment, 1_700_000_000_000, json.dumps(statistics), segment.size_bytes)
