"""Translates Spark's errors about unreadable files: topic, partition, offsets, and remedy.

A user may evaluate a DataFrame long after it was made, and then gets Spark's own error: a ``FAILED_READ_FILE``
from the JVM that names a file. The engine and the jobs translate this error when they evaluate a DataFrame; other
callers can use ``Cluster.read_errors``. The new error does not rely on Spark's text: the file is read again, and
checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StorageError, StratalogError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.segments.check import check_segment
from stratalog.partitions.store import Store

_UNREAD = re.compile(
    r"\[(FAILED_READ_FILE(?:\.\w+)?)\] Encountered error while reading file (\S+?)\.?\s"
    r"|\[(PATH_NOT_FOUND)\] Path does not exist: (\S+?)\.?\s"
)
"""The file that an error names, in its own message or in the message of a cause. Addresses are URL-encoded, so
they have no spaces.
"""
_GONE = ("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND")
"""Conditions of a missing file; the second is from Spark Connect, which looks up the files at each evaluation."""


@contextmanager
def read_errors(stores: Iterable[Store]) -> Iterator[None]:
    """Translate Spark's errors in the block, which evaluates DataFrames of the log.

    Raises: CorruptSegmentError for a damaged file of one of the stores; SourceChangedError for a missing file;
    StorageError for a good file that Spark could not read.
    """
    try:
        yield
    except Exception as error:
        failed = unread_file(error)
        translated = None if failed is None else _translated(list(stores), *failed)
        if translated is None:
            raise
        raise translated from error


def unread_file(error: Exception) -> tuple[str, str] | None:
    """The condition of a Spark error, and the file that it names; None for other errors. The error's text is all
    that classic sessions and Spark Connect have in common.
    """
    if not any(kind.__module__.startswith(("py4j.", "pyspark.")) for kind in type(error).__mro__):
        return None
    causes = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None) or ""
    found = _UNREAD.search(f"{error}\n{causes}\n")
    return None if found is None else (found[1] or found[3], found[2] or found[4])


def _translated(stores: Iterable[Store], condition: str, uri: str) -> StratalogError | None:
    """The error about the file. None for a path that is not from the log."""
    for store in stores:
        for address in (uri, unquote(uri)):
            name = _with_host(address).removeprefix(f"{store.uri}/")
            found = paths.parse_file_path(name)
            if name != _with_host(address) and found is not None:
                return _gone(uri) if condition in _GONE else _checked(store, name, *found)
    if condition == "PATH_NOT_FOUND":
        return None
    if condition in _GONE:
        return _gone(uri)
    return StorageError(f"Spark could not read {uri}, which is not a file of this cluster's logs ({condition})")


def _with_host(uri: str) -> str:
    """``file:/a`` as ``file:///a``."""
    return f"file:///{uri[6:]}" if uri.startswith("file:/") and not uri.startswith("file://") else uri


def _gone(uri: str) -> StratalogError:
    return SourceChangedError(
        f"{uri} was deleted during the read, because it was merged, tiered or expired more than "
        "file.delete.delay.ms ago: read again to find its successor"
    )


def _checked(
    store: Store, path: str, topic: str, partition: int, name: paths.DataName | paths.CheckpointName
) -> StratalogError:
    """The error of the file, found by reading the complete file."""
    what, uri = f"{topic}-{partition}", store.uri_of(path)
    file_name = paths.DataName(0, None, name.epoch) if isinstance(name, paths.CheckpointName) else name
    try:
        bad = check_segment(store, DataFile(file_name, store.stat(path))).bad
    except CorruptSegmentError as error:
        found, start, end = error, file_name.base_offset, file_name.next_offset
    except FileNotFoundError:
        return SourceChangedError(f"{what}: {uri} was deleted during the read: read it again")
    except StratalogError as error:
        return error
    else:
        if not bad:
            return StorageError(f"{what}: Spark could not read {uri}, whose bytes are intact: read it again")
        found, start, end = bad[0].error, bad[0].start, bad[0].end
    if isinstance(name, paths.CheckpointName):
        return CorruptSegmentError(
            f"{what}: the snapshot of offsets [0, {name.end_offset}) cannot be read from {uri}: run heal, or "
            "make a new snapshot with snapshot"
        )
    return with_remedy(unreadable(what, start, end, found))
