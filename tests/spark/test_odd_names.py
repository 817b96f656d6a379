"""Any names of fields work from an append to the Delta table, and none is ever interpreted as SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import polars
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import (
    DoubleType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
)

from stratalog import Cluster
from stratalog.engine.spark.sql import identifier, literal
from stratalog.partitions.errors import InvalidCallError
from tests.spark.spark_cluster import TIERED, format_cluster, write_cluster_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

INJECTION = (
    "a: int>), CAST(NULL AS array<struct<key:string,value:binary>>) FROM (SELECT 1) "
    "WHERE java_method('java.lang.System','setProperty','pwned','yes') = 'x' --"
)
NAMES = (
    *(
        "a b",
        "q'uote",
        '"double"',
        "semi;colon",
        "b`tick",
        "`",
        "a.b",
        "x--y",
        "/*c*/",
        "é漢字",
        "(p)",
        "{b}",
        "[s]",
    ),
    *(
        "a=b",
        "a,b",
        "<s>",
        "$",
        "back\\slash",
        "\\'",
        "%41",
        "a/b",
        ":",
        "#",
        " ",
        "list",
        "element",
        "select",
        "0",
    ),
    INJECTION,
)
COMMENT = "it's \\' odd\\\\ -- ` \" \n;"
INNER = StructType([StructField(name, DoubleType(), True, {"comment": COMMENT}) for name in NAMES])
VALUE = StructType(
    [
        *(StructField(name, StringType(), True, {"comment": COMMENT}) for name in NAMES),
        StructField("inner", INNER),
        StructField("map", MapType(StringType(), INNER)),
    ]
)
ROWS = [
    (
        *(f"{name} {row}" for name in NAMES),
        tuple(float(row + i) for i in range(len(NAMES))),
        {name: tuple(float(row) for _ in NAMES) for name in NAMES},
    )
    for row in range(3)
]


def plain(value: Any) -> Any:
    """Rows as tuples: other assertions check the names."""
    match value:
        case Row():
            return tuple(map(plain, value))
        case dict():
            return {name: plain(one) for name, one in value.items()}
    return value


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    """Topic ``t``: two records in the remote tier, and one on brokers."""
    made = format_cluster(spark, folder)
    made.topics.create("t", partitions=1, replication_factor=2, key="STRING", value=VALUE, configs=TIERED)
    for number, row in enumerate(ROWS):
        frame = spark.createDataFrame(
            [(*row, f"k{number}")], StructType([*VALUE.fields, StructField("k", StringType())])
        )
        made.append("t", frame, key="k", headers=F.lit(None)).raise_for_failures()
        if number == 1:
            made.tier("t").raise_for_failures()
            for _ in range(2):
                made.retain("t").raise_for_failures()
    return made


def field(name: str) -> str:
    return f"value.{identifier(name)}"


def test_they_are_appended_and_read_from_both_tiers(cluster: Cluster) -> None:
    assert {part.remote for part in cluster.plan_read("t")} == {True, False}
    frame = cluster.read("t").orderBy("offset")
    assert [plain(row.value) for row in frame.collect()] == ROWS
    assert frame.schema["value"].dataType.fieldNames() == [*NAMES, "inner", "map"]  # type: ignore[attr-defined]
    one = frame.where(f"{field(NAMES[0])} = {literal('a b 1')}").select(*(F.col(field(name)) for name in NAMES))
    assert [tuple(row) for row in one.collect()] == [ROWS[1][: len(NAMES)]]
    records = cluster.fetch("t", 0, 0).records
    assert records.schema.field("value").type.field(0).name == NAMES[0]
    cluster.verify("t", deep=True).raise_for_failures()


def test_sql_knows_them_by_views_and_range_functions(cluster: Cluster, spark: SparkSession) -> None:
    cluster.create_view("odd_now", "t")
    cluster.create_range_function("odd_range", "t")
    columns = ", ".join(field(name) for name in NAMES)
    assert spark.sql(f"SELECT {columns} FROM odd_now").count() == 3
    found = spark.sql(f"SELECT {columns}, value FROM odd_range('t', 0, 1, 3) ORDER BY offset").collect()
    assert [tuple(row)[:-1] for row in found] == [row[: len(NAMES)] for row in ROWS[1:]]
    assert [plain(row.value) for row in found] == ROWS[1:]


@pytest.mark.long("runs a dozen Spark queries")
@pytest.mark.nightly
@pytest.mark.delta
def test_other_readers_find_them_in_the_delta_table(cluster: Cluster, spark: SparkSession, folder: Path) -> None:
    """Neither Parquet nor Delta's protocol restricts names; only delta-spark refuses to write some."""
    address = str(folder / "remote" / f"t-{cluster.image.topic('t').topic_id}")
    frame = spark.read.format("delta").load(address)
    assert [plain(row.value) for row in frame.orderBy("offset").collect()] == ROWS[:2]
    for name in NAMES:
        assert frame.where(f"{field(name)} = {literal(f'{name} 1')}").count() == 1
    assert deltalake.DeltaTable(address).to_pyarrow_table().column("value").to_pylist()[0][NAMES[0]] == "a b 0"
    assert polars.read_delta(address).height == 2


def test_they_are_streamed(cluster: Cluster, spark: SparkSession) -> None:
    source = spark.readStream.format("stratalog").options(cluster=cluster.file.path, startingOffsets="earliest")
    query = source.load("t").writeStream.format("memory").queryName("odd").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [plain(row.value) for row in spark.table("odd").orderBy("offset").collect()] == ROWS


def test_folders_have_odd_names_too(spark: SparkSession, tmp_path: Path) -> None:
    """An address is not a pattern: reading ``b[1]`` reads nothing in ``b1``."""
    folder = tmp_path / "r [1] {a,b} *? %41 é"
    folder.mkdir()
    file = write_cluster_file(folder, 1)
    (tmp_path / "remote").mkdir()
    file.write_text(file.read_text().replace('"remote"', f'"{tmp_path}/remote"'))
    made = Cluster.format(file, spark)
    made.topics.create("t", partitions=1, replication_factor=1, value="a STRING")
    made.append("t", spark.createDataFrame([("b",)], "a STRING")).raise_for_failures()
    assert [row.value.a for row in made.read("t").collect()] == ["b"]


@pytest.mark.classic("it asks the JVM what was called")
def test_a_name_is_no_sql(spark: SparkSession, tmp_path: Path) -> None:
    """Such a name once called a static Java method for any caller of the range function."""
    made = format_cluster(spark, tmp_path)
    for number, value in enumerate(
        (StructType([StructField(INJECTION, LongType())]), f"{identifier(INJECTION)} INT")
    ):
        topic = f"t{number}"
        made.topics.create(topic, replication_factor=1, value=value)
        made.create_view("injected_now", topic)
        made.create_range_function("injected", topic)
        assert spark.sql(f"SELECT * FROM injected('{topic}', 0, 0, 1)").collect() == []
        assert spark.sql("SELECT * FROM injected_now").collect() == []
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert jvm.java.lang.System.getProperty("pwned") is None


@pytest.mark.parametrize(
    "ddl",
    [
        "a: int>), b",
        "a INT; DROP TABLE x",
        "array<" * 60 + "int",
        "struct<" + "a: struct<" * 60,
        "a INT DEFAULT (SELECT 1",
        "'",
        "`",
        "\x00",
        "variant_or_so",
        "",
        "interval day",
        "a STRING COLLATE UNICODE_CI",
    ],
)
def test_ddl_that_declares_nothing_is_one_clear_error(cluster: Cluster, ddl: str) -> None:
    with pytest.raises(InvalidCallError) as error:
        cluster.topics.create("never", value=ddl)
    assert len(str(error.value)) < 3000
    assert "never" not in cluster.image.topic_ids
