"""Recognizes jobs that Spark aborted, in classic sessions (py4j errors) and on Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException, PythonException

from stratalog.partitions.errors import StratalogError

_RAISED_IN_PYTHON = "api.python.PythonException: Traceback"
_OF_NO_KIND = ("SparkException", "UnknownException", "SparkConnectGrpcException", "RetriesExceeded")
"""Errors of Spark Connect that are not about the computation."""


def why_aborted(error: BaseException) -> str | None:
    """Return in one line why Spark aborted a job: executors or workers were lost too often, the job was cancelled,
    or the JVM or server is gone. Return None for an error that a retry would not fix, such as an exception in
    Python or an expression that fails on a record.

    Errors are recognized by the modules of their types. These modules are not imported, because some clients of
    Spark Connect lack py4j, and some classic sessions lack gRPC.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if "py4j" in packages and hasattr(error, "java_exception"):
        message = _message_of_the_jvm(error)
        return None if _RAISED_IN_PYTHON in message else _first_line(message)
    if packages & {"py4j", "grpc"} or isinstance(error, ConnectionError):
        return f"the driver's JVM, or the server of Spark Connect, is gone ({_first_line(str(error))})"
    if isinstance(error, PySparkException) and not isinstance(error, PythonException):
        kind = type(error)
        ours = ".connect" in kind.__module__ and kind.__name__ in _OF_NO_KIND
        return _first_line(str(error)) if ours and _RAISED_IN_PYTHON not in str(error) else None
    return None


@contextmanager
def aborted_as(kind: type[StratalogError], consequence: str) -> Iterator[None]:
    """Raise ``kind`` if Spark aborts a job in the block."""
    try:
        yield
    except Exception as error:
        why = why_aborted(error)
        if why is None:
            raise
        raise kind(f"Spark aborted the job, {consequence} ({why})") from error


def _message_of_the_jvm(error: BaseException) -> str:
    """The message of the first error in the chain that is not a wrapper."""
    try:
        found = error.java_exception  # type: ignore[attr-defined]
        while str(found.getMessage()).startswith(_AWAITED) and found.getCause() is not None:
            found = found.getCause()
        return str(found.getMessage() or found)
    except Exception as gone:  # the JVM is gone
        if why_aborted(gone) is None:
            raise
        return "the JVM of the driver is gone"


_AWAITED = "Exception thrown in awaitResult"


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.partition(". Consider setting ")[0]  # Spark's advice on how to debug Python
