"""The cluster as one object: the Spark session that it has, or has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.engine.driver.context import Context, TaskRunner
from stratalog.engine.driver.opening import local_tasks
from stratalog.partitions.errors import InvalidCallError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from stratalog.engine.spark.frames import Frame


class SparkOfCluster:
    """A part of ``stratalog.engine.cluster.Cluster``."""

    _context: Context
    _spark: SparkSession | None

    def _session(self, what: str) -> SparkSession:
        """Raises: InvalidCallError when there is none."""
        if self._spark is None:
            raise InvalidCallError(f"{what} as a DataFrame needs a Spark session: Cluster.open(file, spark)")
        return self._spark

    def _dataframe(self, frame: Frame, topic: str) -> DataFrame:
        """As ``stratalog.engine.spark.frames.to_dataframe``. Raises: as that; InvalidCallError where there is no
        pyspark."""
        try:
            from stratalog.engine.spark.frames import to_dataframe
        except ModuleNotFoundError as error:
            raise InvalidCallError(
                f"append to {topic}: {error.name} is not installed: install stratalog[spark], or append_batches"
            ) from error
        return to_dataframe(frame, self._spark, f"append to {topic}")


def task_runner(spark: SparkSession | None) -> TaskRunner:
    """What runs tasks: the executors of a session, threads of this process where there is none. It is asked for
    before anything is changed.

    Raises: EnvironmentUnusableError for a session that cannot run any.
    """
    if spark is None:
        return local_tasks()
    from stratalog.engine.spark.runner import SparkRunner

    return SparkRunner(spark)


def declared(data_type: DataType | str | None) -> str | None:
    """As ``stratalog.engine.spark.types.declared``. None, binary, takes no pyspark.

    Raises: as that; InvalidCallError where there is no pyspark.
    """
    if data_type is None:
        return None
    try:
        from stratalog.engine.spark.types import declared as declared_by_spark
    except ModuleNotFoundError as error:
        raise InvalidCallError(
            "a type of keys or values is Spark's, and pyspark is not installed: install stratalog[spark], "
            "or leave the type out for binary"
        ) from error
    return declared_by_spark(data_type)
