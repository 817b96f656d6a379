"""The cluster as one object: the Spark session that it has, or has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.context import Context
from partitions.errors import InvalidCallError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from engine.spark.frames import Frame


class SparkOfCluster:
    """A part of ``engine.cluster.Cluster``."""

    _context: Context
    _spark: SparkSession | None

    def _session(self, what: str) -> SparkSession:
        """Raises: InvalidCallError when there is none."""
        if self._spark is None:
            raise InvalidCallError(f"{what} as a DataFrame needs a Spark session: Cluster.open(file, spark)")
        return self._spark

    def _dataframe(self, frame: Frame, topic: str) -> DataFrame:
        """As ``engine.spark.frames.to_dataframe``. Raises: as that; InvalidCallError where there is no pyspark."""
        try:
            from engine.spark.frames import to_dataframe
        except ModuleNotFoundError as error:
            raise InvalidCallError(
                f"append to {topic}: {error.name} is not installed: install stratalog[spark], or append_batches"
            ) from error
        return to_dataframe(frame, self._spark, f"append to {topic}")


def declared(data_type: DataType | str | None) -> str | None:
    """As ``engine.spark.types.declared``. None, binary, takes no pyspark.

    Raises: as that; InvalidCallError where there is no pyspark.
    """
    if data_type is None:
        return None
    try:
        from engine.spark.types import declared as declared_by_spark
    except ModuleNotFoundError as error:
        raise InvalidCallError(
            f"a type of keys or values is Spark's, and {error.name} is not installed: install stratalog[spark], "
            "or leave the type out for binary"
        ) from error
    return declared_by_spark(data_type)
