"""The operation's name on Spark's own pages: the description of the jobs that it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, operation: str | None) -> Iterator[None]:
    """Jobs that this thread runs inside have the operation as their description. A description that the caller has
    set stays; so does everything on Spark Connect, whose server describes jobs by itself.
    """
    context = getattr(spark, "_sc", None)
    if context is None or operation is None or context.getLocalProperty(_DESCRIPTION) is not None:
        yield
        return
    context.setJobDescription(f"stratalog {operation}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, None)
