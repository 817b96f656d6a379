"""A mirrored topic and its source as one DataFrame: native scans of the mirrored records, tasks for the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from stratalog import Cluster
from stratalog.bridges.formats.json_text import JsonValues
from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.live.boundary import look_live
from stratalog.bridges.live.frame import live_frame
from stratalog.bridges.live.plan import plan_live
from stratalog.bridges.live.stream import for_each_live_batch
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.reading.bounds import Bound
from stratalog.partitions.declared import declared
from tests.bridges.memory_source import MemorySource
from tests.ports import ports_of, with_ports
from tests.spark.spark_cluster import TIERED, format_cluster
from tests.spark.streams import Seen, limits, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark
VALUES = TypedValues(JsonValues(declared("id LONG")))


def live(
    cluster: Cluster, spark: SparkSession, source: MemorySource, start: Bound = None, end: Bound = None
) -> DataFrame:
    ports = ports_of(cluster)
    plan = plan_live(
        ports.metadata,
        ports.storage,
        ports.clock,
        ports.memory,
        look_live(ports.metadata, ports.storage, ports.clock, ports.memory, source, "t", VALUES),
        start,
        end,
    )
    return live_frame(ports.metadata, ports.storage, ports.clock, ports.memory, spark, plan, VALUES)


@pytest.mark.connect
def test_history_in_both_tiers_and_the_newest_records_are_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    cluster: Cluster = format_cluster(spark, tmp_path)
    source = MemorySource(2)
    options = MirrorOptions(replication_factor=2, values=VALUES)
    for number in range(2):
        for log in source.logs:
            log.append(f'{{"id": {number}}}', None, gaps=1)
        with_ports(mirror, ports_of(cluster))(source, ["t"], options)
        if number == 0:
            cluster.topics.alter_configs("t", TIERED)
            cluster.tier()
            cluster.retain()
    for log in source.logs:
        log.append('{"id": 2}', "no JSON")
    found = live(cluster, spark, source)
    assert found.columns == cluster.read("t").columns
    assert dict(found.dtypes) == dict(cluster.read("t").dtypes)
    rows = found.orderBy("partition", "offset").select("partition", "offset", "value.id", "value._undecoded")
    expected = [(0, 0, None), (1, None, None), (3, 1, None), (4, None, None), (6, 2, None), (7, None, b"no JSON")]
    assert [tuple(row) for row in rows.collect()] == [(p, *row) for p in (0, 1) for row in expected]
    assert live(cluster, spark, source, {0: 4, 1: 7}, {0: 7, 1: 8}).count() == 3
    assert live(cluster, spark, source, "2023-11-14T22:13:20.004", "2023-11-14T22:13:20.007").count() == 2
    with_ports(mirror, ports_of(cluster))(source, ["t"], options)
    assert sorted(map(str, live(cluster, spark, source).collect())) == sorted(map(str, found.collect()))


class Failing(Seen):
    """Fails the next batch while a file exists, after it has read its rows."""

    def __init__(self, fails: Path, *columns: str) -> None:
        super().__init__(*columns)
        self._fails = str(fails)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if Path(self._fails).exists():
            batch.collect()
            Path(self._fails).unlink()
            raise RuntimeError("killed")
        super().__call__(batch, batch_id)


@limits
def test_a_stream_begins_in_the_history_and_goes_over_to_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated batch is the same, although the source has lost its records since. Spark pickles the source with
    each query.
    """
    cluster: Cluster = format_cluster(spark, tmp_path)
    source, fails = MemorySource(), tmp_path / "fails"
    seen = Failing(fails, "offset", "value.id")
    log = source.logs[0]
    log.append('{"id": 0}', '{"id": 1}')
    options = MirrorOptions(replication_factor=2, values=VALUES)
    with_ports(mirror, ports_of(cluster))(source, ["t"], options)
    log.append('{"id": 2}', gaps=1)

    def run() -> None:
        given = {"startingOffsets": "earliest", "maxRowsPerTrigger": "3"}
        writer = for_each_live_batch(ports_of(cluster), spark, "t", source, VALUES, seen, given)
        to_its_end(writer, tmp_path / "checkpoint")

    run()
    assert seen.batches == [[(0, 0), (1, 1), (2, 2)], []], "a gap is an offset without a record"
    log.append('{"id": 4}', '{"id": 5}')
    fails.touch()
    with pytest.raises(StreamingQueryException, match="killed"):
        run()
    with_ports(mirror, ports_of(cluster))(source, ["t"], options)
    log.start = log.end
    run()
    assert seen.batches[2:] == [[(4, 4), (5, 5)]]


@pytest.mark.nightly
@limits
def test_two_streams_of_a_session_read_their_own_topics(spark: SparkSession, tmp_path: Path) -> None:
    """Even if the second is made before the first has started; a batch of another topic is refused."""
    cluster: Cluster = format_cluster(spark, tmp_path)
    made = []
    for name, values in (("t", "ab"), ("u", "xyz")):
        source, seen = MemorySource(name=name), Seen("value")
        source.logs[0].append(*values)
        with_ports(mirror, ports_of(cluster))(source, [name], MirrorOptions(replication_factor=2))
        given = {"startingOffsets": "earliest"}
        made.append(
            (
                for_each_live_batch(ports_of(cluster), spark, name, source, None, seen, given),
                seen,
            )
        )
    for number, (writer, _) in enumerate(made):
        to_its_end(writer, tmp_path / f"checkpoint-{number}")
    assert SparkSession.getActiveSession() is spark, "a batch's own session is over"
    assert [seen.all for _, seen in made] == [[b"a", b"b"], [b"x", b"y", b"z"]]
