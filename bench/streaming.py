"""Measures a stream of micro-batches: the cost of a trigger without records, and the speed of a full one."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

from bench.bench import TOPIC, Bench, BenchCluster, data_files, size_of
from bench.measuring import in_turn, seconds_of
from bench.table import Limit, Line
from stratalog import load_cluster_file, register_format
from stratalog.engine.driver.execution import measured
from stratalog.engine.driver.opening import open_ports
from stratalog.engine.reading.look import look
from stratalog.engine.reading.stream_options import source_options
from stratalog.engine.reading.stream_source import StreamSource
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import open_store

EMPTY_TRIGGERS = 20
FULL = (
    "All records are one batch, which is written to Spark's noop sink. The time is from the trigger to the end of "
    "the batch, including planning. Spark receives a Python source's rows from Python workers, as Arrow. The scan "
    "uses Spark's own Parquet reader."
)
NATIVE = (
    "All records are one batch, which the batch function writes to Spark's noop sink. The time is from the "
    "trigger to the end of the batch, including planning. The stream contains only offset ranges, and each batch "
    "is a scan by Spark."
)


def stream(bench: Bench) -> list[Line]:
    """Stream from a topic with the number of partitions in the options; the peer is a batch read of the same
    records."""
    made = bench.filled(bench.options.partitions)
    made.cluster.replicate().raise_for_failures()
    register_format(bench.spark)
    bench.say("stream")
    return [*_empty(bench, made), *_full(bench, made)]


def _empty(bench: Bench, made: BenchCluster) -> list[Line]:
    """The time of a trigger in the driver's Python: the metadata and a listing of each leader."""
    file = load_cluster_file(made.folder / "cluster.toml")
    ports = open_ports(file, clock=SystemClock(), new_id=random_id, opener=open_store, key=None)
    source = StreamSource(ports.metadata, ports.storage, ports.clock, ports.memory, source_options(_options(made)))
    end = source.latest(source.initial(), None, None)
    source.latest(end, None, None)

    def triggers() -> None:
        for _ in range(EMPTY_TRIGGERS):
            if source.latest(end, None, None) is not end:
                raise AssertionError("a trigger found something where there is nothing")

    def looks() -> None:
        for _ in range(EMPTY_TRIGGERS):
            look(ports.metadata, ports.storage, ports.memory, TOPIC)

    with measured(ports.clock, ports.storage.counts) as measure:
        triggers()
    ours, looked = in_turn(lambda: seconds_of(triggers), lambda: seconds_of(looks))
    return [
        Line(
            "stream: an empty trigger, compared with planning a read",
            f"{ours / EMPTY_TRIGGERS * 1000:.1f} ms",
            f"{looked / EMPTY_TRIGGERS * 1000:.1f} ms",
        ),
        Line("    calls", f"{measure.counts.requests / EMPTY_TRIGGERS:.1f}", ""),
    ]


def _full(bench: Bench, made: BenchCluster) -> list[Line]:
    """One batch with everything, compared with a scan."""
    size = size_of(data_files(made.replicas(leading=True)))
    records = bench.options.records

    def streamed() -> float:
        return _one_batch(bench, made, records)

    def native() -> float:
        return _one_native_batch(bench, made)

    def scanned() -> float:
        return seconds_of(lambda: made.cluster.read(TOPIC).write.format("noop").mode("overwrite").save())

    streamed()  # the workers' first task includes imports
    native()
    ours, peer = in_turn(streamed, scanned)
    by_scan, its_peer = in_turn(native, scanned)
    return [
        Line(
            "stream: a full trigger of for_each_batch, compared with a scan",
            f"{by_scan:.2f} s, {size / by_scan / 1e6:.0f} MB/s",
            f"{its_peer:.2f} s, {size / its_peer / 1e6:.0f} MB/s",
            its_peer / by_scan,
            Limit(0.95),
            NATIVE,
        ),
        Line(
            "stream: a full trigger, compared with a scan",
            f"{ours:.2f} s, {size / ours / 1e6:.0f} MB/s",
            f"{peer:.2f} s, {size / peer / 1e6:.0f} MB/s",
            peer / ours,
            None,
            FULL,
        ),
        Line("    records per second", f"{records / ours:,.0f}", f"{records / peer:,.0f}"),
    ]


def _one_native_batch(bench: Bench, made: BenchCluster) -> float:
    """The seconds of the trigger that passes everything to a function, without the query's start."""

    def into_nothing(frame: DataFrame, batch_id: int) -> None:
        frame.write.format("noop").mode("overwrite").save()

    writer = made.cluster.for_each_batch(TOPIC, into_nothing, startingOffsets="earliest")
    checkpoint = bench.folder / f"checkpoint-{random_id()}"
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    (progress,) = (progress for progress in query.recentProgress if progress["numInputRows"])
    return float(progress["durationMs"]["triggerExecution"]) / 1000


def _one_batch(bench: Bench, made: BenchCluster, records: int) -> float:
    """The seconds of the trigger that reads everything, without the query's start."""
    checkpoint = bench.folder / f"checkpoint-{random_id()}"
    query = (
        bench.spark.readStream.format("stratalog")
        .options(**_options(made))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (progress,) = (progress for progress in query.recentProgress if progress["numInputRows"])
    if abs(progress["numInputRows"] - records) > 16:
        raise AssertionError(f"a stream found {progress['numInputRows']} records, not {records}")
    return float(progress["durationMs"]["triggerExecution"]) / 1000


def _options(made: BenchCluster) -> dict[str, str]:
    file: Path = made.folder / "cluster.toml"
    return {"cluster": str(file), "topic": TOPIC, "startingOffsets": "earliest"}
