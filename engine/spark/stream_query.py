"""The id of the running streaming query, which is stored in its checkpoint."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.printable import first_line

QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id of the running query."""


def query_of_thread(spark: SparkSession) -> str | None:
    """The query whose batch this thread processes; None outside of a query, and in the client of a Spark Connect
    server.
    """
    if is_remote():
        return None
    found: str | None = spark.sparkContext.getLocalProperty(QUERY_ID)
    return found


def query_of_server(spark: SparkSession, checkpoint: str | None) -> str:
    """Return the query whose batch is processed in this process, which runs next to a Spark Connect server. The
    query's ``checkpoint`` identifies it; without a checkpoint, it is the only active query of the session.

    Raises: InvalidCallError if neither is known.
    """
    if checkpoint is not None:
        return _written_down(spark, checkpoint)
    active = [str(query.id) for query in spark.streams.active]
    if len(active) != 1:
        raise InvalidCallError(
            f"the session has {len(active)} active queries, and Spark Connect does not say which query a batch "
            "belongs to: also pass the query's checkpointLocation as stream_writer(..., checkpoint=...)"
        )
    return active[0]


def _written_down(spark: SparkSession, checkpoint: str) -> str:
    """The id in a checkpoint. Spark writes it before the first batch."""
    path = f"{checkpoint.rstrip('/')}/metadata"
    try:
        rows = spark.read.text(path).collect()
        found: Any = parse_json("".join(row[0] for row in rows))
        return str(found["id"])
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise InvalidCallError(
            f"{path} does not contain the query's id; is that the query's checkpointLocation? "
            f"({first_line(error)})"
        ) from error
