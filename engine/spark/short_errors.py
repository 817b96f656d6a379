"""Errors of the format without the lines of Python's stack: a user only needs the message of the error.

Spark runs a Python data source in worker processes, and reports an error there as its traceback. A worker with
``SPARK_HIDE_TRACEBACK`` (``spark.sql.execution.pyspark.udf.hideTraceback.enabled``) reports the error alone. A
worker ends after it has reported an error, so no other report changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from stratalog.engine.spark.versions import LIMITS, spark_version
from stratalog.partitions.errors import StratalogError

_HIDE = "SPARK_HIDE_TRACEBACK"
_OF_WORKERS = "PYTHON_WORKER_FACTORY_"

C = TypeVar("C", bound=type)


def short_errors(of: C) -> C:
    """Class decorator: in a Spark worker, the methods raise stratalog errors without a traceback; other errors
    keep the traceback. Before Spark 4.2 nothing changes: a worker of an earlier version reports an error of its
    own, and the stratalog error is only in the traceback.
    """
    if spark_version() < LIMITS:
        return of
    for name, method in list(vars(of).items()):
        if callable(method) and (not name.startswith("_") or name == "__init__"):
            setattr(of, name, _short(method))
    return of


def _short(method: Callable[..., Any]) -> Callable[..., Any]:
    if isgeneratorfunction(method):

        @wraps(method)
        def rows(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _hidden():
                yield from method(*args, **kwargs)

        return rows

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _hidden():
            return method(*args, **kwargs)

    return call


@contextmanager
def _hidden() -> Iterator[None]:
    try:
        yield
    except StratalogError:
        if any(name.startswith(_OF_WORKERS) for name in os.environ):
            os.environ[_HIDE] = "1"
        raise
