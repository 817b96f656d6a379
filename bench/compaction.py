"""The cost of a compaction: by the size of its dirty part, and the memory and time for many keys.

    python -m bench.compaction                     1, 5 and 20 million keys; then dirty parts of three sizes
    python -m bench.compaction --keys 1000000      other numbers of keys
    python -m bench.compaction --keys 100000000 --dirty     100 million keys: 12 GB of disk in TMPDIR

The topic has one partition on one broker. Each compaction runs in a separate process, so the measured memory is
the memory of one compaction. Keys are random and 16 bytes long, and values are 20 bytes long. A tenth of the keys
occurs twice. Records are generated while they are appended. The benchmark needs no Spark, and is not part of
``make bench``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from bench.measuring import in_child, timed
from bench.memory import own_peak
from bench.table import render
from stratalog import Cluster
from stratalog.partitions.records import physical_schema

TOPIC = "t"
KEYS = 1_000_000, 5_000_000, 20_000_000
DIRTY = 500_000, 1_000_000, 2_000_000
"""The numbers of records in the dirty part, after as many clean ones: the default of min.cleanable.dirty.ratio."""
AN_APPEND = 500_000
KEY_BYTES, VALUE_BYTES = 16, 20
DISK_BYTES_A_KEY = 120
"""An upper bound of the disk space per key. A key has 1.1 records, which take 32 bytes each before the compaction
and 29 bytes after it (measured with 20 million keys). The key's entry in the temporary files takes 28 bytes, and
at most 5 more while the files are split again. The key's mark takes one byte.
"""
_CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.4",
    "segment.bytes": str(1024 * 1024),
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Compacted:
    """The cost of one compaction."""

    headings: ClassVar[tuple[str, ...]] = (
        *("what", "seconds", "peak MB", "peak before", "requests", "read MB", "written MB", "disk MB", "removed"),
    )
    note: ClassVar[str] = (
        "Peak: the resident memory of the process, including Python, Arrow, and the mapped marks (a byte per "
        "offset). Read: each rewritten file once; its keys are also read once before that. Disk: the log "
        "including the replaced files, but without the files of keys, which a compaction deletes at its end."
    )

    what: str
    seconds: float
    peak_mb: float
    before_mb: float
    requests: int
    read_bytes: int
    written_bytes: int
    disk_bytes: int
    removed: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as texts, one for each of ``headings``."""
        return (
            self.what,
            f"{self.seconds:.1f}",
            f"{self.peak_mb:,.0f}",
            f"{self.before_mb:,.0f}",
            f"{self.requests:,}",
            f"{self.read_bytes / 1e6:,.1f}",
            f"{self.written_bytes / 1e6:,.1f}",
            f"{self.disk_bytes / 1e6:,.1f}",
            f"{self.removed:,}",
        )


def disk_bytes(keys: int) -> int:
    """The maximum disk space that ``many_keys`` needs."""
    return keys * DISK_BYTES_A_KEY + 10_000_000


def check_disk(keys: int) -> None:
    """Raises: SystemExit when the folder for temporary files does not have enough space."""
    folder = tempfile.gettempdir()
    free, needed = shutil.disk_usage(folder).free, disk_bytes(keys)
    if free < needed:
        raise SystemExit(
            f"{keys:,} keys need {needed / 1e9:,.1f} GB, and {folder} has {free / 1e9:,.1f} GB free: set TMPDIR "
            "to a folder on another disk"
        )


def many_keys(keys: int) -> Compacted:
    """The first compaction of a log with this number of keys."""
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder:
        cluster = _cluster(Path(folder))
        _fill(cluster, range(keys))
        _fill(cluster, range(0, keys, 10))
        _fill(cluster, range(1))
        cluster.close()
        return in_child(compaction, Path(folder), f"{keys:,} keys")


def dirty_part(records: int) -> Compacted:
    """A compaction of this number of records after as many clean ones. Half of the records have new keys."""
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder:
        cluster = _cluster(Path(folder))
        _fill(cluster, range(records))
        _fill(cluster, range(1))
        in_child(compaction, Path(folder), "clean")
        _fill(cluster, range(records // 2, records // 2 + records))
        _fill(cluster, range(1))
        cluster.close()
        return in_child(compaction, Path(folder), f"{records:,} dirty records, as many clean ones")


def compaction(folder: Path, what: str) -> Compacted:
    """Compact the cluster of ``_cluster``."""
    cluster = Cluster.open(folder / "cluster.toml")
    with own_peak() as before:
        cluster.describe(TOPIC)
    with own_peak() as peak:
        seconds, report = timed(lambda: cluster.compact().raise_for_failures())
    (row,) = report.rows
    assert row["segments"], row
    return Compacted(
        what,
        seconds,
        (peak.bytes or 0) / 1e6,
        (before.bytes or 0) / 1e6,
        report.counts.requests,
        int(str(row["read_bytes"])),
        int(str(row["written_bytes"])),
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        int(str(row["removed"])),
    )


def _cluster(folder: Path) -> Cluster:
    (folder / "b1").mkdir()
    (folder / "cluster.toml").write_text(
        '[cluster]\nid = "c"\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = "b1"\n'
    )
    cluster = Cluster.format(folder / "cluster.toml", keeps_short=False)
    cluster.topics.create(TOPIC, partitions=1, replication_factor=1, configs=_CONFIGS)
    return cluster


def _fill(cluster: Cluster, numbers: range) -> None:
    for at in range(0, len(numbers), AN_APPEND):
        cluster.append_batches(TOPIC, {0: list(_batches(numbers[at : at + AN_APPEND]))}).raise_for_failures()


def _batches(numbers: range) -> Iterator[pa.RecordBatch]:
    """Records whose keys follow from the numbers, and whose values are random."""
    schema, rows = physical_schema(), len(numbers)
    each = np.asarray(numbers, np.uint64)
    key = np.stack([each * np.uint64(0x9E3779B97F4A7C15), each ^ np.uint64(0xABCDEF)], axis=1)
    value = np.random.default_rng(numbers.start).bytes(rows * VALUE_BYTES)
    yield pa.RecordBatch.from_arrays(
        [
            pa.nulls(rows, schema.field("timestamp").type),
            _binary(key.tobytes(), rows, KEY_BYTES),
            _binary(value, rows, VALUE_BYTES),
            pa.nulls(rows, schema.field("headers").type),
        ],
        names=["timestamp", "key", "value", "headers"],
    )


def _binary(data: bytes, rows: int, width: int) -> pa.Array:
    ends = np.arange(rows + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.compaction", description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=KEYS, help="numbers of keys")
    parser.add_argument("--dirty", type=int, nargs="*", default=DIRTY, help="records of dirty parts")
    given = parser.parse_args(arguments)
    lines = []
    for keys in given.keys:
        check_disk(keys)
    for work, sizes in ((dirty_part, given.dirty), (many_keys, given.keys)):
        for size in sizes:
            lines.append(work(size))
            print(*lines[-1].cells, sep="  ", flush=True)
    print(render(lines))


if __name__ == "__main__":
    main()
