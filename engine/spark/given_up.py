"""Why Spark gave a job up, said once for both kinds of session: errors of a classic one are py4j's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException, PythonException

from stratalog.partitions.errors import StratalogError

_RAISED_IN_PYTHON = "api.python.PythonException: Traceback"
_OF_NO_KIND = ("SparkException", "UnknownException", "SparkConnectGrpcException", "RetriesExceeded")
"""Errors of Spark Connect that are not about what was to be computed."""


def why_given_up(error: BaseException) -> str | None:
    """Why Spark gave a job up, in one line: executors or workers were lost once too often, the job was
    cancelled, or the JVM or the server is gone. None for everything else, which a retry would not mend: an
    exception in Python, or an expression that fails on a record.

    Errors are told by the modules of their types, and no module is imported for it: py4j is not in every client of
    Spark Connect, nor gRPC beside every classic session.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if "py4j" in packages and hasattr(error, "java_exception"):
        said = _said_by_the_jvm(error)
        return None if _RAISED_IN_PYTHON in said else _first_line(said)
    if packages & {"py4j", "grpc"} or isinstance(error, ConnectionError):
        return f"the driver's JVM, or the server of Spark Connect, is gone ({_first_line(str(error))})"
    if isinstance(error, PySparkException) and not isinstance(error, PythonException):
        kind = type(error)
        ours = ".connect" in kind.__module__ and kind.__name__ in _OF_NO_KIND
        return _first_line(str(error)) if ours and _RAISED_IN_PYTHON not in str(error) else None
    return None


@contextmanager
def given_up(kind: type[StratalogError], consequence: str) -> Iterator[None]:
    """A job that Spark gave up, as an error of ours."""
    try:
        yield
    except Exception as error:
        why = why_given_up(error)
        if why is None:
            raise
        raise kind(f"Spark gave the job up, {consequence} ({why})") from error


def _said_by_the_jvm(error: BaseException) -> str:
    """The words of the first one in the chain that is no wrapper."""
    try:
        found = error.java_exception  # type: ignore[attr-defined]
        while str(found.getMessage()).startswith(_AWAITED) and found.getCause() is not None:
            found = found.getCause()
        return str(found.getMessage() or found)
    except Exception as gone:  # the JVM has gone since
        if why_given_up(gone) is None:
            raise
        return "the JVM of the driver is gone"


_AWAITED = "Exception thrown in awaitResult"


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.partition(". Consider setting ")[0]  # Spark's advice on how to debug Python
