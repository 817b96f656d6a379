"""The names of a cluster in catalogs and in ``spark.sql``: ``cluster.catalog``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.engine.cluster.arguments import session
from stratalog.engine.driver.opening import Ports

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession


class Catalog:
    """The tables and views of a cluster in SQL.

        cluster.catalog.create_system_views()  # for this session
        cluster.catalog.create_table("lake.logs.trips", "trips")  # in a catalog, for any reader of Delta
        cluster.catalog.create_view("logs.trips_now", "trips")
        cluster.catalog.delta_table("trips").history()  # by delta-spark

    ``Cluster.create_view`` and ``Cluster.create_range_function`` give a read a name within one session.
    """

    def __init__(self, ports: Ports, spark: SparkSession | None) -> None:
        """Use ``Cluster.catalog``."""
        self._ports = ports
        self._spark = spark

    def __repr__(self) -> str:
        return "A cluster in SQL: create_system_views(), create_table(...), create_view(...), delta_table(...)"

    def create_system_views(self, prefix: str = "stratalog") -> None:
        """Create temporary views ``stratalog_topics``, ``stratalog_partitions`` (one row per replica),
        ``stratalog_groups`` (one row per group and partition, with its lag), ``stratalog_operations`` (the
        history) and ``stratalog_files``, which show the state of the cluster at the time of a query. Each name is
        also a table function that takes a topic and reads only that topic: ``stratalog_partitions('trips')``.
        ``stratalog_offsets('trips', 'latest')`` is ``Cluster.offsets``.

        The views run on an executor, which needs this package and access to the storage.

        Raises: InvalidCallError for a prefix that is not a name.
        """
        spark = session(self._spark, "system views")
        from stratalog.engine.spark.views import create_system_views

        create_system_views(spark, self._ports.storage.file, prefix)

    def create_table(self, name: str, topic: str, *, if_not_exists: bool = False) -> None:
        """Register the Delta table of a topic as an external table ``catalog.schema.name``, in any catalog that
        accepts external tables. ``if_not_exists``: keep an existing table with the same location. For errors see
        ``stratalog.engine.spark.catalog.create_table``."""
        spark = session(self._spark, "a table")
        from stratalog.engine.spark.catalog import create_table

        create_table(self._ports.metadata, self._ports.storage, spark, name, topic, if_not_exists=if_not_exists)

    def delta_table(self, topic: str) -> DeltaTable:
        """Return the Delta table of a topic as a ``DeltaTable`` of delta-spark (``pip install
        'stratalog[delta]'``). It gives the table's history, its details, and a DataFrame of any of its versions.
        For errors see ``stratalog.engine.spark.catalog.delta_table``.
        """
        spark = session(self._spark, "a Delta table")
        from stratalog.engine.spark.catalog import delta_table

        return delta_table(self._ports.metadata, self._ports.storage, spark, topic)

    def create_view(
        self, name: str, topic: str, *, table: str | None = None, credentials: str | None = None
    ) -> None:
        """Create a permanent view of the committed records of a topic, in both tiers, in Spark's own catalog.
        Records that are tiered after the view was created stay in the view, but are read more slowly, so recreate
        the view from time to time. For errors see ``stratalog.engine.spark.catalog.create_view``."""
        spark = session(self._spark, "a view")
        from stratalog.engine.spark.catalog import create_view

        create_view(
            *(self._ports.metadata, self._ports.storage, self._ports.memory),
            spark,
            name,
            topic,
            table=table,
            credentials=credentials,
        )
