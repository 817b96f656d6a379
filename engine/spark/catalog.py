"""Names in a catalog: a topic's Delta table as an external table, and a view of both tiers.

The view is of two halves that meet at the offsets up to which the table went when the view was made: below them
it reads the table, from them on a table of the format ``stratalog``. So no record is missing and none is there
twice, however much is tiered later: the second half reads either tier. Make the view anew after a while, so that
this half, which goes through Python, stays short.

No catalog but Spark's own (``spark.sql.catalog.spark_catalog`` is ``builtin``, in memory or Hive's metastore) can
hold the second half; the Delta table may lie in any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

from stratalog.engine.driver.context import Context
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.spark.format import TABLE
from stratalog.engine.spark.sql import identifier, literal
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.offsets import FoundOffset, OffsetSpec

_OWN_CATALOG = "spark.sql.catalog.spark_catalog"
_BUILTIN = "builtin"
_COLUMNS = "partition, offset, timestamp, key, value, headers"
_EARLIEST = -2
"""In startingOffsets."""


def create_table(
    context: Context, spark: SparkSession, name: str, topic: str, *, if_not_exists: bool = False
) -> None:
    """The Delta table of a topic as the external table ``name`` (one to three parts), in whichever catalog that
    names. With ``if_not_exists`` a table that is there and lies at the same place stays.

    Raises: InvalidCallError for no name, a topic that is not tiered or of which nothing is, and a table of that
        name (with ``if_not_exists``: another one); UnknownTopicOrPartitionError; as ``DeltaTopicReader.load``.
    """
    quoted, uri = _quoted(name), _table_uri(context, topic)
    if not if_not_exists and spark.catalog.tableExists(quoted):
        raise InvalidCallError(f"{name} is there already: if_not_exists takes it, if it is the table of the topic")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {quoted} USING delta LOCATION {literal(uri)}")
    there = _location(spark, quoted)
    if _place(there) != _place(uri):
        raise InvalidCallError(
            f"{name} is there, and is another table than that of topic {topic!r}, {uri}: {there}"
        )


def create_view(
    context: Context,
    spark: SparkSession,
    name: str,
    topic: str,
    *,
    table: str | None,
    credentials: str | None,
) -> None:
    """The committed records of a topic, of both tiers, as the view ``name`` in Spark's own catalog; one of that
    name is replaced. ``table`` is its Delta table in whichever catalog; None: ``<name>_table``. It is made where
    it is not there. ``<name>_tail``, made anew, is the topic by the format ``stratalog``. ``credentials`` is the
    name of a provider for that.

    The properties of the view tell what it was made of: ``stratalog.topic``, ``stratalog.topic_id``,
    ``stratalog.table``, and ``stratalog.table_end``, the first offset of each partition that is read by the tail.

    Raises: as ``create_table``; InvalidCallError where the session's catalog is not Spark's own, and for a table
        ``<name>_tail`` of another kind.
    """
    _check_own_catalog(spark)
    view, tail = _quoted(name), _quoted(f"{name}_tail")
    cold = _quoted(f"{name}_table" if table is None else table)
    uri = _table_uri(context, topic)
    ends = _ends(context, topic)
    replaces = _is_ours(spark, tail)
    create_table(context, spark, f"{name}_table" if table is None else table, topic, if_not_exists=True)
    options = {"cluster": context.file.path, "subscribe": topic, "isolation": "read_committed"}
    if credentials is not None:
        options["credentials"] = credentials
    if replaces:  # its columns are those that the topic had then
        spark.sql(f"DROP TABLE {tail}")
    given = ", ".join(f"{literal(key)} {literal(value)}" for key, value in options.items())
    spark.sql(f"CREATE TABLE {tail} USING stratalog OPTIONS ({given})")
    starts = json.dumps({str(partition): end for partition, end in ends.items()})
    below = " OR ".join(f"(partition = {p} AND offset < {end})" for p, end in ends.items() if end != _EARLIEST)
    properties = {
        "stratalog.topic": topic,
        "stratalog.topic_id": context.metadata.image().topic(topic).topic_id,
        "stratalog.table": uri,
        "stratalog.table_end": starts,
    }
    said = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    spark.sql(
        f"CREATE OR REPLACE VIEW {view} TBLPROPERTIES ({said}) AS "
        f"SELECT {literal(topic)} AS topic, {_COLUMNS} FROM {cold} WHERE control IS NULL AND ({below or 'false'}) "
        f"UNION ALL SELECT topic, {_COLUMNS} FROM {tail} WITH (startingOffsets {literal(starts)})"
    )


def _ends(context: Context, topic: str) -> Mapping[int, int]:
    """Up to where the table goes, by partition. Raises: InvalidCallError for a topic that is not tiered."""
    answers = list_offsets(context, topic, OffsetSpec.EARLIEST_PENDING_UPLOAD)
    return {
        partition: answer.offset if isinstance(answer, FoundOffset) else _EARLIEST
        for partition, answer in sorted(answers.items())
    }


def _table_uri(context: Context, topic: str) -> str:
    """Raises: InvalidCallError where there is no table."""
    image = context.metadata.image()
    of_topic = image.topic(topic)
    if not context.topic_config(image, of_topic).remote_storage_enable:
        raise InvalidCallError(f"topic {topic!r} is not tiered, and has no Delta table: set remote.storage.enable")
    if context.remote_table(of_topic).load().version < 0:
        raise InvalidCallError(f"topic {topic!r} has no Delta table yet: tier it first")
    return context.remote_store(f"topic {topic!r} is tiered").uri_of(context.remote_folder(of_topic))


def _is_ours(spark: SparkSession, table: str) -> bool:
    """Whether there is such a table. Raises: InvalidCallError for one of another format."""
    if not spark.catalog.tableExists(table):
        return False
    if not any(TABLE in field.metadata for field in spark.table(table).schema):
        raise InvalidCallError(f"{table} is there, and is no table of the format stratalog: give another name")
    return True


def _location(spark: SparkSession, table: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    return next((row[1] for row in reversed(rows) if row[0] == "Location"), "nowhere")


def _check_own_catalog(spark: SparkSession) -> None:
    found = spark.conf.get(_OWN_CATALOG, _BUILTIN)
    if found != _BUILTIN:
        raise InvalidCallError(
            f"a view of both tiers lies in Spark's own catalog, and {_OWN_CATALOG} is {found}: set it to "
            f"{_BUILTIN} in the sessions that make and read the view (Delta tables are read by their names there, "
            "too); or use a temporary view, cluster.create_view"
        )


def _quoted(name: str) -> str:
    """A name of one to three parts as SQL has it. Raises: InvalidCallError."""
    parts = name.split(".")
    if len(parts) > 3 or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in parts):
        raise InvalidCallError(
            f"{name!r} is no name in a catalog: catalog.schema.name, each of letters, digits, _ and -"
        )
    return ".".join(map(identifier, parts))


def _place(uri: str) -> str:
    """An address in one spelling: Hadoop writes ``file:/x`` for ``file:///x``."""
    return re.sub(r"\A(\w+):/+", r"\1:/", uri).rstrip("/")
