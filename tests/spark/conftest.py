"""A cluster for each file of tests. Files that need topics from the beginning create their own from ``folder``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from stratalog.jobs.jars import with_delta
from tests.bare_python import wheel_of_checkout
from tests.spark.streams import stream_cluster, topic_of_its_own
from tests.spark_session import ON_CONNECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return wheel_of_checkout(tmp_path_factory.mktemp("wheel"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests on both kinds of session, except those marked with a reason."""
    for item in items:
        if item.get_closest_marker("delta") is not None and not with_delta():
            item.add_marker(pytest.mark.skip(reason="Delta has no build for this Spark"))
        mark = item.get_closest_marker("classic")
        if ON_CONNECT and mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"of classic sessions alone: {mark.args[0]}"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the file's cluster."""
    return tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    """One cluster per module: each test has its own topic."""
    return stream_cluster(spark, folder)


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic named after the test."""
    return topic_of_its_own(cluster, request.node.name)
