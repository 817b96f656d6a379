"""The one Spark session of a test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark(s3_endpoint: object) -> Iterator[object]:
    """A session on two cores, set up as jobs set theirs up; reach a server with ``reach_stores``.

    It comes after the S3 server, whose credentials must be in the JVM's environment when that starts. Tests
    share it, and its JVM: they change only session settings that they set back.
    """
    from stratalog.jobs.session import log_option, spark_session

    session = spark_session(
        "tests",
        master="local[2]",
        settings={
            # The first compiler alone: tests are over before the second one pays off.
            "spark.driver.extraJavaOptions": f'"{log_option()}" -XX:TieredStopAtLevel=1',
        },
    )
    yield session
    session.stop()
