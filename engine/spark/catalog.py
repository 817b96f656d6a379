"""A topic in a catalog: its Delta table as an external table, and a view of both tiers.

The view joins two halves at the end offsets that the Delta table had when the view was made. Records below these
offsets come from the Delta table; records from these offsets on come from a table of the format ``stratalog``. The
second half reads both tiers, so no record is missing or duplicated, however much is tiered later. Recreate the
view from time to time, so that this half, which passes through Python, stays short.

Only Spark's own catalog (``spark.sql.catalog.spark_catalog`` is ``builtin``, in memory or in Hive's metastore) can
hold the second half; the Delta table may be in any catalog.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.spark.format import BUILTIN, CATALOG, FORMAT, TABLE, register
from stratalog.engine.spark.sql import identifier, literal
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.offsets import FoundOffset, OffsetSpec

if TYPE_CHECKING:
    from delta.tables import DeltaTable

_COLUMNS = "partition, offset, timestamp, key, value, headers"
_EARLIEST = -2
"""The number that means the earliest offset in ``startingOffsets``."""


def create_table(
    metadata: MetadataClient,
    storage: Storage,
    spark: SparkSession,
    name: str,
    topic: str,
    *,
    if_not_exists: bool = False,
) -> None:
    """Create the Delta table of a topic as the external table ``name`` (one to three parts), in the catalog that
    the name gives. With ``if_not_exists`` an existing table with the same location is kept.

    Raises: InvalidCallError for an invalid name, for a topic that is not tiered or has no tiered records, and if a
        table of that name exists (with ``if_not_exists``: if its location is different);
        UnknownTopicOrPartitionError; see ``DeltaTopicReader.load``.
    """
    quoted, uri = _quoted(name), _table_uri(metadata, storage, topic)
    if not if_not_exists and spark.catalog.tableExists(quoted):
        raise InvalidCallError(f"{name} already exists: to keep the topic's existing table, use if_not_exists")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {quoted} USING delta LOCATION {literal(uri)}")
    there = _location(spark, quoted)
    if _place(there) != _place(uri):
        raise InvalidCallError(
            f"{name} exists, but is not the table of topic {topic!r}: its location is {there}, not {uri}"
        )


def delta_table(metadata: MetadataClient, storage: Storage, spark: SparkSession, topic: str) -> DeltaTable:
    """Open the Delta table of a topic with delta-spark. The session needs Delta's jars; on Spark Connect, the
    server needs the Delta plugin.

    Raises: EnvironmentUnusableError if delta-spark is not installed; see ``create_table``.
    """
    try:
        from delta.tables import DeltaTable
    except ModuleNotFoundError:
        raise EnvironmentUnusableError("delta-spark is not installed: pip install 'stratalog[delta]'") from None
    return DeltaTable.forPath(spark, _table_uri(metadata, storage, topic))


def create_view(
    metadata: MetadataClient,
    storage: Storage,
    memory: Memory,
    spark: SparkSession,
    name: str,
    topic: str,
    *,
    table: str | None,
    credentials: str | None,
) -> None:
    """Create a view ``name`` of a topic's committed records in both tiers, in Spark's own catalog. An existing
    view of that name is replaced. ``table`` names the topic's Delta table in any catalog (None: ``<name>_table``);
    a missing table is created. The table ``<name>_tail``, which is also replaced, is the topic in the format
    ``stratalog``; ``credentials`` names a provider for that table.

    The view has the properties ``stratalog.topic``, ``stratalog.topic_id``, ``stratalog.table``, and
    ``stratalog.table_end``: the first offset of each partition in the tail.

    Raises: see ``create_table``; InvalidCallError if the session's catalog is not Spark's own, or if
        ``<name>_tail`` is a table of another format.
    """
    _check_own_catalog(spark)
    register(spark)  # the session's catalog may have changed since the format was registered
    view, tail = _quoted(name), _quoted(f"{name}_tail")
    cold = _quoted(f"{name}_table" if table is None else table)
    uri = _table_uri(metadata, storage, topic)
    ends = _ends(metadata, storage, memory, topic)
    replaces = _is_ours(spark, tail)
    create_table(metadata, storage, spark, f"{name}_table" if table is None else table, topic, if_not_exists=True)
    options = {"cluster": storage.file.path, "subscribe": topic, "isolation": "read_committed"}
    if credentials is not None:
        options["credentials"] = credentials
    if replaces:  # the existing table has the topic's columns of the time when the table was made
        # Spark cannot replace it, so check first that its successor can be made, because the view needs it.
        spark.read.format(FORMAT).options(**options).load().schema  # noqa: B018 - Spark Connect checks it here
        spark.sql(f"DROP TABLE {tail}")
    given = ", ".join(f"{literal(key)} {literal(value)}" for key, value in options.items())
    spark.sql(f"CREATE TABLE {tail} USING stratalog OPTIONS ({given})")
    starts = json.dumps({str(partition): end for partition, end in ends.items()})
    below = " OR ".join(f"(partition = {p} AND offset < {end})" for p, end in ends.items() if end != _EARLIEST)
    properties = {
        "stratalog.topic": topic,
        "stratalog.topic_id": metadata.image().topic(topic).topic_id,
        "stratalog.table": uri,
        "stratalog.table_end": starts,
    }
    literals = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    spark.sql(
        f"CREATE OR REPLACE VIEW {view} TBLPROPERTIES ({literals}) AS "
        f"SELECT {literal(topic)} AS topic, {_COLUMNS} FROM {cold} WHERE control IS NULL AND ({below or 'false'}) "
        f"UNION ALL SELECT topic, {_COLUMNS} FROM {tail} WITH (startingOffsets {literal(starts)})"
    )


def _ends(metadata: MetadataClient, storage: Storage, memory: Memory, topic: str) -> Mapping[int, int]:
    """The end offset of the table, by partition. Raises: InvalidCallError for a topic that is not tiered."""
    answers = list_offsets(metadata, storage, memory, topic, OffsetSpec.EARLIEST_PENDING_UPLOAD)
    return {
        partition: answer.offset if isinstance(answer, FoundOffset) else _EARLIEST
        for partition, answer in sorted(answers.items())
    }


def _table_uri(metadata: MetadataClient, storage: Storage, topic: str) -> str:
    """The location of the table. Raises: InvalidCallError without a table."""
    image = metadata.image()
    of_topic = image.topic(topic)
    if not topic_config_of(image, of_topic).remote_storage_enable:
        raise InvalidCallError(f"topic {topic!r} is not tiered, and has no Delta table: set remote.storage.enable")
    if storage.remote_table(of_topic).load().version < 0:
        raise InvalidCallError(f"topic {topic!r} has no Delta table yet: tier it first")
    return storage.remote_store(f"topic {topic!r} is tiered").uri_of(of_topic.folder)


def _is_ours(spark: SparkSession, table: str) -> bool:
    """Whether the table exists. Raises: InvalidCallError for a table of another format."""
    if not spark.catalog.tableExists(table):
        return False
    if not any(TABLE in field.metadata for field in spark.table(table).schema):
        raise InvalidCallError(f"{table} exists, but is not a table of the format stratalog: give another name")
    return True


def _location(spark: SparkSession, table: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    return next((row[1] for row in reversed(rows) if row[0] == "Location"), "nowhere")


def _check_own_catalog(spark: SparkSession) -> None:
    found = spark.conf.get(CATALOG, BUILTIN)
    if found != BUILTIN:
        raise InvalidCallError(
            f"a view of both tiers needs Spark's own catalog, but {CATALOG} is {found}: set it to "
            f"{BUILTIN} in the sessions that make and read the view (such sessions also read Delta tables "
            "by name); or use cluster.create_views(), which names topics in any session (stratalog.trips)"
        )


def _quoted(name: str) -> str:
    """A name of one to three parts, quoted for SQL. Raises: InvalidCallError."""
    parts = name.split(".")
    if len(parts) > 3 or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in parts):
        raise InvalidCallError(
            f"{name!r} is not a name in a catalog: give catalog.schema.name; parts have letters, digits, _ and -"
        )
    return ".".join(map(identifier, parts))


def _place(uri: str) -> str:
    """The canonical spelling of an address: Hadoop writes ``file:/x`` for ``file:///x``."""
    return re.sub(r"\A(\w+):/+", r"\1:/", uri).rstrip("/")
