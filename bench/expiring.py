"""Removes ten thousand segments below the log start from a table in a bucket, and deletes their objects."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.bench import Bench
from bench.measuring import seconds_of
from bench.remote_log import filled
from bench.table import Limit, Line, seconds_line
from bench.uploading import fresh_server
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.s3 import S3Store
from stratalog.partitions.store.s3_bucket import KEYS_PER_DELETE
from stratalog.tiering.plan import expired_segments

SEGMENTS = 10_000
THREADS = 8
NOTE = (
    "One request deletes a thousand objects, and one page of a listing has a thousand names. The peer knows "
    "the names, and sends the same deletions."
)


def expiring(bench: Bench) -> list[Line]:
    """Retain, after the delay, compared with plain bulk deletions; each runs once."""
    bench.say(f"remote log, {SEGMENTS:,} expired segments on an S3 server")
    with fresh_server(bench.folder / "s3-expiring") as endpoint:
        options = StoreOptions(endpoint_url=endpoint.url)
        store = S3Store(f"s3://{endpoint.bucket}/expiring", options)
        table = filled(store, SEGMENTS, options)
        log = table.load()
        _create(store, [table.path(segment) for segment in log.all_segments()])
        ends = {partition: log.end(partition) or 0 for partition in log.segments}
        before = store.counts.snapshot()

        def expire() -> None:
            table.commit((), expired_segments(table.load(), ends))
            if len(table.vacuum(0)) != SEGMENTS:
                raise AssertionError("not every expired segment was deleted")

        ours = seconds_of(expire)
        counts = store.counts - before
        plain = [f"plain/{number}" for number in range(SEGMENTS)]
        _create(store, plain)
        peer = seconds_of(lambda: store.delete(plain))
    least = -(-SEGMENTS // KEYS_PER_DELETE)
    return [
        seconds_line(f"{SEGMENTS:,} expired segments leave a bucket; plain bulk deletions", ours, peer, note=NOTE),
        Line(
            "    deletions; pages of listings",
            f"{counts.deletes}; {counts.lists}",
            f"{least}; 0",
            counts.deletes / least,
            Limit(1.0, at_most=True),
        ),
    ]


def _create(store: S3Store, names: Sequence[str]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        if not all(pool.map(lambda name: store.create(name, b"segment"), names)):
            raise AssertionError("a name was taken")
