"""Checks and converts the arguments of ``Cluster``'s methods for the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.engine.driver.opening import local_tasks
from stratalog.engine.driver.tasks import TaskRunner
from stratalog.partitions.declared import declared as declared_text
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.runner import RUNNERS, THREADS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

TopicNames = Sequence[str] | str | None
"""One topic, several topics, or None for all topics."""


def names(topics: TopicNames) -> Sequence[str] | None:
    """Return the topics as a list; None means all topics."""
    return [topics] if isinstance(topics, str) else topics


def topic_first(method: str, topic: object, data: object) -> None:
    """Check that a call names its topic before its data. Raises: InvalidCallError."""
    if not isinstance(topic, str):
        name = repr(data) if isinstance(data, str) else "topic"
        raise InvalidCallError(
            f"{method} takes the topic first, then the data: {method}({name}, ...); the first argument here is a "
            f"{type(topic).__name__}"
        )


def session(spark: SparkSession | None, what: str) -> SparkSession:
    """Return the session. Raises: InvalidCallError if it is None."""
    if spark is None:
        raise InvalidCallError(f"{what} as a DataFrame needs a Spark session: Cluster.open(file, spark)")
    return spark


def option_text(value: object) -> str:
    """Return a value as the text of a Spark option: ``true``, not ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def task_runner(spark: SparkSession | None, runner: str) -> TaskRunner:
    """Return the runner of tasks. It uses the executors of the session. Without a session, or if ``runner`` is
    ``threads``, it uses threads of this process. Call this before you change anything, because it raises if tasks
    cannot run.

    Raises: EnvironmentUnusableError for a session that cannot run tasks; InvalidCallError for another runner.
    """
    if runner not in RUNNERS:
        raise InvalidCallError(f"runner is {runner!r}: use {' or '.join(map(repr, RUNNERS))}")
    if spark is None or runner == THREADS:
        return local_tasks()
    from stratalog.engine.spark import providers  # noqa: F401 - a provider that was given travels
    from stratalog.engine.spark.runner import SparkRunner

    return SparkRunner(spark)


def declared(data_type: DataType | str | None) -> str | None:
    """Return the JSON text of a type that is given as DDL (``"year INT, carrier STRING"``), as JSON text, or as a
    Spark type. For None, which means binary, return None.

    Raises: InvalidCallError for a text that is not a type, or a type that no topic can have.
    """
    if data_type is None:
        return None
    if isinstance(data_type, type) or not (isinstance(data_type, str) or hasattr(data_type, "json")):
        raise InvalidCallError(
            f"{data_type!r} does not declare a type: give DDL such as 'year INT, carrier STRING', Spark's JSON "
            "text of a type, or a type of Spark such as frame.schema"
        )
    try:
        return declared_text(data_type if isinstance(data_type, str) else data_type.json())
    except RecursionError as error:
        raise InvalidCallError("a declared type nests too deeply") from error
