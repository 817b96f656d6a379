"""A flipped bit in a file of the log: a read returns right rows or fails with an error of one line, in any session
and by any path."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stratalog import Cluster
from stratalog.jobs import read as job
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StorageError
from tests.depth import at_depth
from tests.spark.spark_cluster import TIERED, format_cluster

pytestmark = pytest.mark.spark

RECORDS, FLIPS = 400, 3
VECTORISED = "spark.sql.parquet.enableVectorizedReader"
Read = Callable[[Cluster, str], "DataFrame"]


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Topics ``zstd`` and ``uncompressed`` with one file each, and ``tiered``, whose first file is remote only.
    They have nested and dictionary-encoded values.
    """
    made = format_cluster(spark, tmp_path_factory.mktemp("flips"))
    rows = spark.range(RECORDS).selectExpr(
        "concat('k', id) AS k",
        "id AS n",
        "sha2(cast(id AS STRING), 256) AS word",
        "concat('few', id % 3) AS few",
        "struct(id % 7 AS seven, array(id, id * 2) AS list) AS inner",
    )
    for codec, topic in (("zstd", "zstd"), ("uncompressed", "uncompressed"), ("zstd", "tiered")):
        made.topics.create(
            topic,
            partitions=1,
            replication_factor=1,
            key="STRING",
            value="n BIGINT, word STRING, few STRING, inner STRUCT<seven: BIGINT, list: ARRAY<BIGINT>>",
            configs={"compression.type": codec} | (TIERED if topic == "tiered" else {}),
        )
        for _ in range(2 if topic == "tiered" else 1):
            made.append(topic, rows.coalesce(1), key="k", order_by=["n"]).raise_for_failures()
    made.tier("tiered").raise_for_failures()
    for _ in range(2):
        made.retain("tiered").raise_for_failures()
    return made


def first_file(cluster: Cluster, topic: str) -> Path:
    return Path(cluster.plan_read(topic)[0].uri.removeprefix("file://"))


@contextmanager
def flipped(file: Path, at: int, bit: int = 0) -> Iterator[None]:
    """The file with one flipped bit."""
    good = file.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1 << bit
    file.write_bytes(bad)
    try:
        yield
    finally:
        file.write_bytes(good)


@contextmanager
def session(spark: SparkSession, **settings: str) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def pages(file: Path) -> list[int]:
    """Positions in pages, the same number for every column: in bodies, and in headers before them."""
    group = pq.read_metadata(file).row_group(0)
    dice = random.Random(7)
    found = []
    for column in (group.column(index) for index in range(group.num_columns)):
        first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        found += [dice.randrange(first, first + column.total_compressed_size) for _ in range(FLIPS)]
    return found


def in_page(file: Path, path: str) -> int:
    """A position in the middle of a column."""
    group = pq.read_metadata(file).row_group(0)
    column = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == path)
    first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return int(first + column.total_compressed_size // 2)


def by_range_function(cluster: Cluster, topic: str) -> DataFrame:
    cluster.create_range_function("flips", topic)
    return SparkSession.active().sql(f"SELECT * FROM flips('{topic}', 0, 0, {RECORDS})")


def by_view(cluster: Cluster, topic: str) -> DataFrame:
    cluster.create_view("flips_view", topic)
    return SparkSession.active().sql("SELECT * FROM flips_view WHERE offset < 390")


WAYS: dict[str, Read] = {
    "all": lambda cluster, topic: cluster.read(topic),
    "a part": lambda cluster, topic: cluster.read(topic, 100, 300).where("value.few = 'few1'"),
    "a plan": lambda cluster, topic: cluster.read(cluster.plan_read(topic, 0, 390)),
    "a view": by_view,
    "a range function": by_range_function,
}


@pytest.mark.sample(2)
@pytest.mark.long("runs a Spark query for each bit")
@pytest.mark.parametrize(
    ("topic", "vectorised"),
    [("zstd", "true"), ("zstd", "false"), ("uncompressed", "true"), ("tiered", "true")],
)
def test_a_flipped_bit_in_a_page_is_never_a_wrong_value(
    cluster: Cluster, spark: SparkSession, topic: str, vectorised: str
) -> None:
    """For every column, including nested ones and dictionaries; by both of Spark's readers, in a session that
    disables checks.
    """
    file = first_file(cluster, topic)
    found = 0
    with session(spark, **{VECTORISED: vectorised, "parquet.page.verify-checksum.enabled": "false"}):
        good = cluster.read(topic).orderBy("offset").collect()
        for at in pages(file)[:: at_depth(test=4, nightly=1)]:
            with flipped(file, at):
                try:
                    assert cluster.read(topic).orderBy("offset").collect() == good, f"byte {at}"
                except (Py4JJavaError, PySparkException):
                    found += 1
    assert found > len(pages(file)) / at_depth(test=8, nightly=2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("topic", ["zstd", "tiered"])
def test_the_error_is_one_line_with_topic_partition_offsets_and_remedy(
    cluster: Cluster, way: str, topic: str
) -> None:
    file = first_file(cluster, topic)
    frame = WAYS[way](cluster, topic)
    at = in_page(file, "value.word")
    text = rf"^{topic}-0: offsets \[0, {RECORDS}\) cannot be read: .*{file.name}.*; run heal[^\n]*$"
    with flipped(file, at):
        with pytest.raises(CorruptSegmentError, match=text), cluster.read_errors():
            frame.select("value.word", "value.few").collect()
        if way != "all":
            return
        with pytest.raises(CorruptSegmentError, match=text), cluster.read_errors():
            frame.toArrow()


@pytest.mark.parametrize("where", ["page index", "footer"])
@pytest.mark.parametrize("topic", ["zstd", "tiered"])
def test_planning_a_read_checks_the_footer_and_the_page_index_which_have_no_checksum_in_parquet(
    cluster: Cluster, topic: str, where: str
) -> None:
    """Spark would skip row groups because of a wrong statistic, and read nulls because of a wrong name."""
    file = first_file(cluster, topic)
    size = file.stat().st_size
    footer = int.from_bytes(file.read_bytes()[-8:-4], "little") + 8
    at = size - footer + (40 if where == "footer" else -40)
    with (
        flipped(file, at),
        pytest.raises(CorruptSegmentError, match=rf"^{topic}-0: offsets .* its .*{where}.*heal"),
    ):
        cluster.read(topic)


def test_the_job_says_that_line(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    file = first_file(cluster, "zstd")
    with flipped(file, in_page(file, "offset")):
        status = job.main(["--cluster", str(cluster.file.path), "zstd"])
    messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ERROR CORRUPT_SEGMENT: ")]
    assert status == 1
    assert len(messages) == 1
    assert messages[0].startswith(f"ERROR CORRUPT_SEGMENT: zstd-0: offsets [0, {RECORDS}) cannot be read")


def test_an_error_with_another_cause_is_not_called_damage(cluster: Cluster, spark: SparkSession) -> None:
    """A file that is intact when it is checked, a deleted file, a foreign file, and other errors."""
    file, frame = first_file(cluster, "uncompressed"), cluster.read("uncompressed")
    good = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(SourceChangedError, match="was deleted during the read"), cluster.read_errors():
            frame.collect()
    finally:
        file.write_bytes(good)
    other = file.parent.parent / "foreign.parquet"
    other.write_bytes(bytes(100))
    foreign = spark.read.schema("x INT").parquet(str(other))
    with pytest.raises(StorageError, match="not a file of this cluster's logs"), cluster.read_errors():
        foreign.collect()
    with pytest.raises(Exception, match="mine") as raised, cluster.read_errors():
        frame.selectExpr("raise_error('mine')").collect()
    assert not isinstance(raised.value, CorruptSegmentError | StorageError)


def test_a_snapshot_s_pages_are_checked_too(spark: SparkSession, tmp_path: Path) -> None:
    made = format_cluster(spark, tmp_path)
    made.topics.create(
        "latest", partitions=1, replication_factor=1, key="STRING", configs={"cleanup.policy": "snapshot"}
    )
    rows: Any = spark.range(200).selectExpr("concat('k', id) AS k", "sha2(cast(id AS STRING), 256) AS value")
    made.append("latest", rows.coalesce(1), key="k").raise_for_failures()
    made.snapshot("latest", by_hand=True).raise_for_failures()
    frame = made.read_snapshot("latest")
    (file,) = (path for path in tmp_path.rglob("*.checkpoint") if "latest" in str(path))
    with (
        flipped(file, in_page(file, "value")),
        pytest.raises(CorruptSegmentError, match=r"^latest-0: the snapshot of offsets \[0, 200\)"),
        made.read_errors(),
    ):
        frame.collect()


@pytest.mark.nightly
@pytest.mark.parametrize("tier", ["local", "remote"])
@pytest.mark.parametrize("where", ["page", "footer"])
def test_the_advice_in_the_error_repairs_the_read(
    spark: SparkSession, tmp_path: Path, tier: str, where: str
) -> None:
    """Another copy replaces the damaged one: on a broker under its name, in the remote tier under another name."""
    made = format_cluster(spark, tmp_path)
    remote = TIERED | {"file.delete.delay.ms": "600000"} if tier == "remote" else {}
    made.topics.create("t", partitions=1, replication_factor=2, configs=remote)
    for _ in range(2):
        rows = spark.range(RECORDS).selectExpr("sha2(cast(id AS STRING), 256) AS value")
        made.append("t", rows.coalesce(1)).raise_for_failures()
    if remote:
        made.tier().raise_for_failures()
        made.retain().raise_for_failures()
    plan, frame = made.plan_read("t"), made.read("t").orderBy("offset")
    good = frame.collect()
    file = first_file(made, "t")
    assert plan[0].remote == bool(remote)
    data = bytearray(file.read_bytes())
    data[in_page(file, "value") if where == "page" else -200] ^= 1
    file.write_bytes(data)
    with (
        pytest.raises(CorruptSegmentError, match=r"run heal.* then plan the read again"),
        made.read_errors(),
    ):
        made.read("t").collect()
    made.heal().raise_for_failures()
    assert made.read("t").orderBy("offset").collect() == good
    if not remote:
        assert made.read(plan).orderBy("offset").collect() == frame.collect() == good
