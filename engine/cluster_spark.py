"""The cluster as one object: the Spark session that it has, or has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.context import Context
from partitions.errors import InvalidCallError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkOfCluster:
    """A part of ``engine.cluster.Cluster``."""

    _context: Context
    _spark: SparkSession | None

    def _session(self, what: str) -> SparkSession:
        """Raises: InvalidCallError when there is none."""
        if self._spark is None:
            raise InvalidCallError(f"{what} as a DataFrame needs a Spark session: Cluster.open(file, spark)")
        return self._spark
