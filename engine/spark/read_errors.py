"""Spark's errors about a file that it cannot read, in our words: topic, partition, offsets, and what to do.

A DataFrame is evaluated by its owner, long after it was made, and then the error is Spark's own: a
``FAILED_READ_FILE`` that names a file, from the JVM. It is caught where the engine and the jobs evaluate, and for
other callers by ``Cluster.read_errors``. Our error does not rely on Spark's text: the file is read again, and
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StorageError, StratalogError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.segment_check import check_segment
from stratalog.partitions.store import Store

_CONDITION = "FAILED_READ_FILE"
_GONE = "FAILED_READ_FILE.FILE_NOT_EXIST"
_MOST_CAUSES = 20


@contextmanager
def read_errors(stores: Iterable[Store]) -> Iterator[None]:
    """Evaluate DataFrames of the log inside.

    Raises: CorruptSegmentError for a file of one of the stores that is damaged; SourceChangedError for one that is
        gone; StorageError for one that Spark could not read, and that is good.
    """
    try:
        yield
    except Exception as error:
        failed = _unread_file(error)
        if failed is None:
            raise
        raise _said(list(stores), *failed) from error


def _unread_file(error: Exception) -> tuple[str, str] | None:
    """The condition of an error of Spark's, and the file that it names; None for all others."""
    found = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    context = SparkContext._active_spark_context
    if context is None:
        return None
    for _ in range(_MOST_CAUSES):
        if found is None:
            break
        condition = _condition(context._gateway, found)
        if condition.startswith(_CONDITION):
            return condition, str(found.getMessageParameters().get("path"))
        found = found.getCause()
    return None


def _condition(gateway: Any, throwable: Any) -> str:
    known = is_instance_of(gateway, throwable, "org.apache.spark.SparkThrowable")
    return str(throwable.getCondition()) if known else ""


def _said(stores: Iterable[Store], condition: str, uri: str) -> StratalogError:
    """The error about the file."""
    if condition == _GONE:
        return SourceChangedError(
            f"{uri} was deleted while it was read, for it was merged, tiered, or expired for longer than "
            "file.delete.delay.ms: read it again, which finds its successor"
        )
    for store in stores:
        for address in (uri, unquote(uri)):
            name = address.removeprefix(f"{store.uri}/")
            found = paths.parse_file_path(name)
            if name != address and found is not None:
                return _checked(store, name, *found)
    return StorageError(f"Spark could not read {uri}, which is no file of this cluster's logs ({condition})")


def _checked(
    store: Store, path: str, topic: str, partition: int, name: paths.DataName | paths.CheckpointName
) -> StratalogError:
    """The error of the file, found by reading all of it."""
    what, uri = f"{topic}-{partition}", store.uri_of(path)
    if isinstance(name, paths.CheckpointName):
        return CorruptSegmentError(
            f"{what}: the snapshot of offsets [0, {name.end_offset}) cannot be read from {uri}: run verify --deep "
            "--heal, or snapshot for a new one"
        )
    try:
        bad = check_segment(store, DataFile(name, store.stat(path))).bad
    except CorruptSegmentError as error:
        return with_remedy(unreadable(what, name.base_offset, name.next_offset, error))
    except FileNotFoundError:
        return SourceChangedError(f"{what}: {uri} was deleted while it was read: read it again")
    except StratalogError as error:
        return error
    if bad:
        return with_remedy(unreadable(what, bad[0].start, bad[0].end, bad[0].error))
    return StorageError(f"{what}: Spark could not read {uri}, whose bytes are good: read it again")
