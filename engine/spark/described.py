"""Shows the operation's name on Spark's pages, as the description of its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, operation: str | None) -> Iterator[None]:
    """Describe the jobs that this thread runs in the block by the operation's name. A description that the caller
    has set is kept. On Spark Connect nothing changes, because its server describes jobs itself.
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
