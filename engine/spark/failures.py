"""Jobs that Spark gave up for want of machines, told apart from bugs and from records that are wrong."""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError

_RAISED_IN_PYTHON = "api.python.PythonException: Traceback"

CONNECTION_ERRORS = (Py4JError, ConnectionError)
"""Errors of a call into the JVM for which PySpark has none of its own."""


def why_given_up(error: Exception) -> str | None:
    """Why Spark gave a job up, in one line: executors or workers were lost once too often, the job was
    cancelled, or the JVM is gone. None for everything else, which a retry would not mend: an exception in
    Python, or an expression that fails on a record.
    """
    if isinstance(error, Py4JJavaError):
        said = _message(error)
        return None if _RAISED_IN_PYTHON in said else _first_line(said)
    if isinstance(error, CONNECTION_ERRORS):
        return f"the JVM of the driver is gone ({_first_line(str(error))})"
    return None


def _message(error: Py4JJavaError) -> str:
    try:
        return str(error.java_exception.getMessage() or error.java_exception)
    except CONNECTION_ERRORS:  # the JVM has gone since
        return "the JVM of the driver is gone"


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.partition(". Consider setting ")[0]  # Spark's advice on how to debug Python
