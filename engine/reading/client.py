"""Finds the identity and rack of the reader, for replica selectors (KIP-392, "Consumer API")."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.replication.replica_selector import ClientMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_KEY = "spark.stratalog.client.rack"
VARIABLE = "STRATALOG_CLIENT_RACK"


def client_rack(
    given: str | None, in_spark: str | None, environ: Mapping[str, str], file: ClusterFile
) -> str | None:
    """Find Kafka's ``client.rack``: in the call (or ``--client-rack``), else in Spark's conf, the environment, or
    the cluster file. An empty text means no rack. None if the rack is unknown.
    """
    choices = (given, in_spark, environ.get(VARIABLE), file.client_rack)
    return next((rack for rack in choices if rack is not None), None) or None


def client_metadata(file: ClusterFile, spark: SparkSession | None, given_rack: str | None) -> ClientMetadata:
    """The properties of this driver as a reader; see ``client_rack`` for the rack."""
    in_spark = None if spark is None else spark.conf.get(SPARK_KEY, None)
    app_name = None if spark is None else spark.conf.get("spark.app.name", None)
    try:
        principal = getpass.getuser()
    except (OSError, KeyError):  # the user of a container may have no name
        principal = None
    return ClientMetadata(
        rack=client_rack(given_rack, in_spark, os.environ, file),
        client_id=app_name,
        principal=principal,
        address=socket.gethostname(),
    )
