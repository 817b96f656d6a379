"""The environment of a benchmark: records from a seed, clusters in folders, and their files."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bench.options import RECORD_BYTES, BenchOptions, size_text
from stratalog import Cluster
from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import constant
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import random_id
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.producers import Acks, ProducerEntry
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store import Store, StoreCounts, StoreOptions, open_store

SOURCE_FILES = 16
"""The number of slices of the records. Tasks share the slices, and a benchmark can use only some of them."""
COLUMNS = 20
"""The number of columns of the typed topic."""
TOPIC = "bench"
TMPFS = Path("/dev/shm")

_SEED = 405
_BATCH_ROWS = 4096
_ALPHABET = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_", dtype=np.uint8)


class Bench:
    """A session, the options, and a folder to work in."""

    def __init__(self, session: SparkSession | None, options: BenchOptions) -> None:
        """``session`` is None if no benchmark needs one."""
        # The figures include only the operations: an event would cost as much as an append of a record.
        os.environ.setdefault("STRATALOG_HISTORY", "off")
        self.session = session
        self.options = options
        self._shared: dict[int, BenchCluster] = {}

    @property
    def spark(self) -> SparkSession:
        """The session.

        Raises: InvalidCallError without a session.
        """
        if self.session is None:
            raise InvalidCallError("this benchmark needs Spark, and no session was started for it")
        return self.session

    @property
    def folder(self) -> Path:
        """The folder with everything that is written."""
        return self.options.folder

    def say(self, text: str) -> None:
        """Show the progress to the user."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def records(self, slices: Sequence[int] = range(SOURCE_FILES)) -> DataFrame:
        """All records, or some sixteenths of them, with ``key`` and ``value``, from plain Parquet files without a
        codec. The files are written at first use. Both sides pay the same cost for reading them.
        """
        source = self.folder / "source"
        if not source.exists():
            self.say(f"writing the records, {self.options.records:,} of 1 KiB")
            self._write_records(source)
        files = sorted(str(file) for file in source.glob("*.parquet"))
        return self.spark.read.parquet(*(files[index] for index in slices))

    def cluster(self, name: str, brokers: int = 1, within: Path | None = None) -> BenchCluster:
        """A new cluster in its own folder below ``within`` (None: ``folder``), with a folder as its remote
        tier."""
        folder = (self.folder if within is None else within) / name
        (folder / "remote").mkdir(parents=True)
        for broker in range(1, brokers + 1):
            (folder / f"broker-{broker}").mkdir()
        file = cluster_file(folder, name, brokers, str(folder / "remote"))
        return BenchCluster(Cluster.format(file, self.session), folder, name, brokers)

    def filled(self, partitions: int) -> BenchCluster:
        """A cluster of two brokers with all records in ``TOPIC``, which has two replicas; the followers are still
        empty. Made at first use, and shared by benchmarks that do not change the leaders."""
        if partitions not in self._shared:
            made = self.cluster(f"filled-{partitions}", brokers=2)
            made.create_topic(partitions, replicas=2)
            self.say(f"appending to {partitions} partition(s)")
            made.append(self.records())
            self._shared[partitions] = made
        return self._shared[partitions]

    def remove_filled(self) -> None:
        """Free the disk of the shared clusters."""
        for made in self._shared.values():
            made.remove()
        self._shared.clear()

    def _write_records(self, target: Path) -> None:
        rows = -(-self.options.records // SOURCE_FILES)

        def values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column("id").to_pylist():
                    yield from slice_of_records(index * rows, rows, seed=_SEED + index)

        slices = self.spark.range(0, SOURCE_FILES, 1, SOURCE_FILES)
        records = slices.mapInArrow(values, "key binary, value binary")
        records.write.option("compression", "none").parquet(str(target))


@dataclass(frozen=True, slots=True)
class BenchCluster:
    cluster: Cluster
    folder: Path
    name: str
    brokers: int
    drivers: list[Cluster] = field(default_factory=list)
    """The drivers besides ``cluster``."""

    def create_topic(
        self, partitions: int, replicas: int = 1, value: str | None = None, compression: str = "zstd"
    ) -> None:
        configs = {} if compression == "zstd" else {"compression.type": compression}
        self.cluster.topics.create(
            TOPIC, partitions=partitions, replication_factor=replicas, value=value, configs=configs
        )

    def driver(self, spark: SparkSession | None = None) -> Cluster:
        """Another driver, which has cached nothing, like a job that has just started."""
        self.drivers.append(Cluster.open(self.folder / "cluster.toml", spark))
        return self.drivers[-1]

    def append(
        self,
        frame: DataFrame,
        value: Column | str = "value",
        acks: Acks = "leader",
        producer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        """Append all rows to ``TOPIC``, or fail."""
        self.cluster.append(
            TOPIC, frame, key="key", value=value, acks=acks, producer=producer, sequence=sequence
        ).raise_for_failures()

    def tiered(self) -> None:
        """Make ``TOPIC`` tiered, with every append as a sealed segment of its own size."""
        self.cluster.topics.alter_configs(TOPIC, {"remote.storage.enable": "true", "segment.bytes": "65536"})

    def only_remote(self) -> None:
        """Delete the tiered records from the brokers' disks."""
        self.cluster.topics.alter_configs(TOPIC, {"local.retention.bytes": "0", "file.delete.delay.ms": "0"})
        for _ in range(2):  # the second run deletes the files that are no longer in the log
            self.cluster.retain().raise_for_failures()

    def lose(self, broker: int) -> None:
        """Empty the disk of a broker."""
        folder = self.folder / f"broker-{broker}"
        shutil.rmtree(folder)
        folder.mkdir()

    def remote_folders(self) -> list[Path]:
        """The folders of the remote tier."""
        return list((self.folder / "remote").glob(f"{TOPIC}-*"))

    def replicas(self, *, leading: bool) -> list[Path]:
        """The folders of the replicas that lead, or that follow, in partition order."""
        found: list[Path] = []
        for view in self.cluster.image.views(TOPIC):
            for broker in view.replicas:
                if (broker == view.leader) == leading:
                    root = self.folder / f"broker-{broker}" / view.brokers[broker].incarnation_folder
                    found += root.glob(f"{TOPIC}-*/{view.partition}.*")
        return found

    def remove(self) -> None:
        """Wait until no driver merges a log in the background, and free the disk."""
        for driver in (self.cluster, *self.drivers):
            driver.close()
        shutil.rmtree(self.folder)


def cluster_file(
    folder: Path,
    name: str,
    brokers: int,
    remote: str,
    s3: Mapping[str, str | bool] | None = None,
    roots: str | None = None,
) -> Path:
    """Write the cluster file of a folder. A file with options of S3 has a different name, so that both files can
    exist. The roots of the brokers are ``broker-1`` and so on in ``roots`` (None: ``folder``).
    """
    lines = ["[cluster]", f'id = "{name}"', f'remote = "{remote}"', "voters = [1]"]
    for broker in range(1, brokers + 1):
        log_dir = f"{roots or folder}/broker-{broker}"
        lines += ["[[brokers]]", f"id = {broker}", f'rack = "r{broker}"', f'log_dir = "{log_dir}"']
    if s3 is not None:
        lines += ["[s3]", *(f"{key} = {json.dumps(value)}" for key, value in s3.items())]
    file = folder / ("cluster.toml" if s3 is None else "cluster-s3.toml")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def record_batch(values: pa.Array, timestamp_us: int = 1_000) -> pa.RecordBatch:
    """Records of these values, without keys."""
    schema = physical_schema()
    columns = {
        "timestamp": constant(timestamp_us, schema.field("timestamp").type, len(values)),
        "key": pa.nulls(len(values), pa.binary()),
        "value": values,
        "headers": pa.nulls(len(values), schema.field("headers").type),
    }
    return pa.RecordBatch.from_pydict(columns)


class CountedStores:
    """An opener of stores for ``with_parts``, which sums up their counts."""

    def __init__(self) -> None:
        self._stores: list[Store] = []

    def __call__(self, uri: str, options: StoreOptions, clock: Clock) -> Store:
        self._stores.append(open_store(uri, options, clock))
        return self._stores[-1]

    @property
    def counts(self) -> StoreCounts:
        """The counts of all stores so far."""
        return sum((store.counts for store in self._stores), StoreCounts())


@contextmanager
def stages_of(spark: SparkSession) -> Iterator[list[Any]]:
    """Collect the stages of the jobs that this thread runs in the block, in order, as Spark's ``StageData``;
    available after the block.
    """
    context = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    group, stages = random_id(), list[Any]()
    context.setJobGroup(group, group)
    try:
        yield stages
    finally:
        context._jsc.sc().clearJobGroup()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    found = [store.lastStageAttempt(stage) for info in infos if info is not None for stage in info.stageIds]
    stages += sorted((stage for stage in found if stage.numCompleteTasks()), key=lambda stage: stage.stageId())


def segment_of(
    batch: pa.RecordBatch,
    topic_id: str,
    partition: int,
    base_offset: int,
    leader_epoch: int,
    created_ms: int,
    producers: Mapping[str, ProducerEntry] | None = None,
) -> bytes:
    """A segment's file of one batch, by a leader that has led from the first record on."""
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink, physical_schema(), topic_id=topic_id, partition=partition, base_offset=base_offset
    )
    writer.write(batch)
    writer.close(
        lineage=Lineage([(leader_epoch, 0)]), producers=lambda _: dict(producers or {}), created_ms=created_ms
    )
    return sink.getvalue()


@contextmanager
def in_memory(size_bytes: int) -> Iterator[Path]:
    """A folder in memory, which exists for the block.

    Raises: InvalidCallError without such a file system, or without ``size_bytes`` bytes of room.
    """
    if not TMPFS.is_dir():
        raise InvalidCallError(f"{TMPFS} is not a folder: this benchmark needs a file system in memory")
    free = shutil.disk_usage(TMPFS).free
    if free < size_bytes:
        raise InvalidCallError(
            f"{TMPFS} has {size_text(free)} free, but this benchmark needs {size_text(size_bytes)}"
        )
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-", dir=TMPFS) as folder:
        yield Path(folder)


def size_of(files: Iterable[Path]) -> int:
    """Bytes of the files."""
    return sum(file.stat().st_size for file in files)


def data_files(folders: Iterable[Path]) -> list[Path]:
    """The data files in the folders of replicas."""
    return [file for folder in folders for file in sorted(folder.glob("*.parquet"))]


def copy_durably(files: Mapping[Path, Sequence[Path]]) -> None:
    """Copy files into folders with ``cp``, then fsync each copy: the peer of ``replicate``."""
    for folder, sources in files.items():
        subprocess.run(["cp", "--", *map(str, sources), str(folder)], check=True)
    for folder, sources in files.items():
        for source in sources:
            descriptor = os.open(folder / source.name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def typed_columns(value: Column) -> Column:
    """``COLUMNS`` columns of text, together as large as the value that they are cut from."""
    width = RECORD_BYTES // COLUMNS
    text = value.cast("string")
    return F.struct(*(F.substring(text, 1 + i * width, width).alias(f"c{i:02d}") for i in range(COLUMNS)))


TYPED = ", ".join(f"c{i:02d} STRING" for i in range(COLUMNS))


def values_of(data: object, rows: int, width: int) -> pa.Array:
    """A binary array over a buffer of ``rows`` values of ``width`` bytes each."""
    ends = np.arange(rows + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def slice_of_records(first: int, rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Records whose keys are numbers, and whose values are random text of 64 letters, which a codec shortens to
    three quarters."""
    random = np.random.default_rng(seed)
    for start in range(first, first + rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, first + rows - start)
        letters = _ALPHABET[np.frombuffer(random.bytes(count * RECORD_BYTES), dtype=np.uint8) & 63]
        values = values_of(letters, count, RECORD_BYTES)
        keys = pa.array([b"%d" % key for key in range(start, start + count)], pa.binary())
        yield pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


def pairs_of_records(records: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of such records."""
    for batch in slice_of_records(0, records, seed):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
