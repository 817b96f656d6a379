"""Failures of a Spark job: lost machines, missing file systems, and bugs."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    PythonException,
    SparkConnectGrpcException,
    SparkException,
    SparkRuntimeException,
)

from stratalog.engine.spark.aborted import why_aborted
from stratalog.engine.spark.scanning import without_file_system

ABORTED = "Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent failure: "


class FromJavaError(Py4JJavaError):
    """An exception of the JVM, with its message."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.java_exception = self
        self._message = message

    def getMessage(self) -> str:  # noqa: N802 - Java's name
        return self._message

    def __str__(self) -> str:
        return f"An error occurred while calling o55.parquet.\n: {self._message}"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            FromJavaError(f"{ABORTED}ExecutorLostFailure (executor 1 exited): code 137\nDriver stacktrace:"),
            f"{ABORTED}ExecutorLostFailure (executor 1 exited): code 137",
        ),
        (
            FromJavaError(
                f"{ABORTED}Python worker exited unexpectedly (crashed). Consider setting 'a' to 'true'."
            ),
            f"{ABORTED}Python worker exited unexpectedly (crashed)",
        ),
        (FromJavaError("Job 3 cancelled"), "Job 3 cancelled"),
        (
            Py4JNetworkError("Answer from Java side is empty"),
            "the driver's JVM, or the server of Spark Connect, is gone (Answer from Java side",
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            "the driver's JVM, or the server of Spark Connect, is",
        ),
        (SparkException(f"{ABORTED}ExecutorLostFailure\nDriver stacktrace:"), f"{ABORTED}ExecutorLostFailure"),
        (SparkException("[SPARK_JOB_CANCELLED] Job 3 cancelled"), "[SPARK_JOB_CANCELLED] Job 3 cancelled"),
        (SparkConnectGrpcException("failed to connect to all addresses"), "failed to connect to all addresses"),
    ],
)
def test_lost_machines_are_a_reason_in_one_line(error: Exception, why: str) -> None:
    found = why_aborted(error)
    assert found is not None
    assert found.startswith(why)
    assert "\n" not in found


@pytest.mark.parametrize(
    "error",
    [
        FromJavaError(
            f"{ABORTED}org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n..."
        ),
        ZeroDivisionError(),
        PythonException("An exception was thrown from the Python worker. Traceback (most recent call last): ..."),
        SparkRuntimeException("[USER_RAISED_EXCEPTION] a row's partition is null"),
        AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/a"),
    ],
)
def test_bugs_are_no_reason(error: Exception) -> None:
    assert why_aborted(error) is None


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (
            FromJavaError('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"'),
            'No FileSystem for scheme "s3"',
        ),
        (
            SparkConnectGrpcException(
                "(java.lang.RuntimeException) java.lang.ClassNotFoundException: "
                "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
            ),
            "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        ),
        (FromJavaError("java.nio.file.AccessDeniedException: s3://bucket/b1/t-0: 403"), None),
    ],
    ids=["scheme", "class", "another"],
)
def test_a_session_without_the_file_system_of_the_storage_learns_what_to_do(
    error: Exception, lacking: str | None
) -> None:
    found = without_file_system(error)
    if lacking is None:
        assert found is None
    else:
        assert str(found).startswith(f"this Spark session cannot read the log's files itself ({lacking})")
        assert 'spark.read.format("stratalog")' in str(found)
