"""Executors whose environment has no credentials of the storage: a provider supplies them, or they are not
needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.s3_server import S3Endpoint
from tests.spark.nothing_shared import CREDENTIALS, KEY, VALUE, Site, site
from tests.spark.spark_cluster import TIERED
from tests.spark.standalone import HOSTS, ROOT
from tests.spark.vault import Vault, vault

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.nightly,
    pytest.mark.classic("its drivers have sessions of their own"),
]

ROWS = 20_000
"""More rows than the driver appends by itself."""
NOBODY = dict.fromkeys(CREDENTIALS, "")
"""An environment without credentials, for the driver, too."""


@pytest.fixture(scope="module")
def place(s3_endpoint: S3Endpoint, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("credentials")
    with site(folder, s3_endpoint, wheel, "py-files", hands_out=False) as started:
        started.write_cluster_file()
        assert started.run("format")["ok"]
        table = pa.table({"k": [f"k{n % 7}" for n in range(ROWS)], "n": list(range(ROWS))})
        pq.write_table(table, started.folder / "in.parquet")
        yield started


@pytest.fixture
def keys() -> Iterator[Vault]:
    with vault() as running:
        yield running


def make_topic(place: Site, name: str) -> None:
    place.cluster.topics.create(name, partitions=2, replication_factor=2, key=KEY, value=VALUE, configs=TIERED)


def append(place: Site, topic: str) -> tuple[str, ...]:
    return (
        "append",
        topic,
        "--input",
        str(place.folder / "in.parquet"),
        "--key",
        "k",
        "--acks",
        "leader",
    )


def test_executors_ask_a_provider_where_nobody_has_credentials(place: Site, keys: Vault) -> None:
    """No environment has any, including the driver's: an append, a replication, a check of all bytes."""
    make_topic(place, "asked")
    module = keys.write_provider(place.folder)
    given = ("--credentials", "vault_provider:keys")
    calls = (append(place, "asked"), ("replicate",), ("verify", "--deep"))
    appended, copied, verified = place.run_in_turn(
        *((*call, *given) for call in calls), PY_FILES=str(module), STRATALOG_CREDENTIALS=given[1], **NOBODY
    )
    assert appended["totals"]["records"] == ROWS
    assert copied["totals"]["copied_bytes"] > 0
    assert verified["totals"]["findings"] == 0
    executors = [one for one in keys.asked if one["worker"] is not None]
    assert {one["worker"] for one in executors} == set(HOSTS)
    assert all("pyspark.daemon" in one["command"] for one in executors), "they are Python workers"
    drivers = {one["pid"] for one in keys.asked if one["worker"] is None}
    assert drivers
    assert drivers.isdisjoint(one["pid"] for one in executors)
    assert not any(one["has"] for one in keys.asked)


def test_executors_that_may_not_reach_the_storage_are_not_asked_to(place: Site) -> None:
    """The driver has credentials, and ``--runner threads``: without that option, the same append fails in the
    tasks."""
    make_topic(place, "threads")
    refused = place.run(*append(place, "threads"), status=1)
    assert {one["code"] for one in refused["failures"]} == {"SASL_AUTHENTICATION_FAILED"}
    jobs = (append(place, "threads"), ("replicate",), ("merge",), ("tier",), ("verify", "--deep"), ("maintain",))
    appended, *others = place.run_in_turn(*((*job, "--runner", "threads") for job in jobs))
    assert appended["totals"]["records"] == ROWS
    assert all(report["ok"] for report in others)


def test_a_plain_session_reads_and_appends_without_our_jars(place: Site, keys: Vault) -> None:
    """Both tiers, in buckets, on executors, through the format and as a DataFrame; and on the driver alone."""
    make_topic(place, "plain")
    jobs = (append(place, "plain"), append(place, "plain"), ("replicate",), ("tier",), ("retain",), ("retain",))
    place.run_in_turn(*((*job, "--runner", "threads") for job in jobs))
    assert any(part.remote for part in place.cluster.plan_read("plain"))
    script = place.folder / "without_jars.py"
    shutil.copy(ROOT / "tests/spark/without_jars.py", script)
    module = keys.write_provider(place.folder)
    plain = {"spark.driver.extraClassPath": "", "spark.executor.extraClassPath": ""}
    argv = (place.bucket.uri_of("cluster.toml"), "vault_provider:keys", "plain")
    text = place.start(script, *argv, settings=plain, PY_FILES=str(module), **NOBODY).end()
    answer = json.loads(text.rpartition("TOLD ")[2].splitlines()[0])
    assert len(answer["absent"]) == 2
    assert (answer["before"], answer["appended"]) == (2 * ROWS, ROWS)
    assert answer["sum"] == 2 * sum(range(ROWS)) + sum(range(ROWS, 2 * ROWS))
    assert answer["fetched"] > 0
    assert answer["tailed"] == 8
    assert answer["read"] == 3 * ROWS
    assert {one["worker"] for one in keys.asked} == {None, *HOSTS}
