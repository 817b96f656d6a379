"""The remote tier on emulators of Azure and Google."""

from __future__ import annotations

import io
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
import pytest

from bench.cloud_servers import ACCOUNT_KEY
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.tiering.delta_options import storage_options
from tests.cloud_servers import CloudEndpoint
from tests.unit.tiering_harness import (
    TieredPartition,
    check_commits_at_once,
    check_life_of_a_table,
    table_in,
)

pytestmark = [pytest.mark.s3, pytest.mark.nightly]

OPTIONS = StoreOptions(timeout_s=10, retries=2)


@pytest.fixture(params=["azure", "gcs"])
def endpoint(request: pytest.FixtureRequest) -> CloudEndpoint:
    found: CloudEndpoint = request.getfixturevalue(f"{request.param}_endpoint")
    return found


@pytest.fixture
def remote(endpoint: CloudEndpoint, request: pytest.FixtureRequest) -> Store:
    return open_store(f"{endpoint.root}/{request.node.originalname}", OPTIONS)


def test_a_table_on_a_cloud_is_tiered_reused_expired_and_deleted(remote: Store, tmp_path: Path) -> None:
    check_life_of_a_table(TieredPartition(tmp_path, remote, OPTIONS))


def test_deltalake_and_polars_read_what_was_tiered(remote: Store, tmp_path: Path) -> None:
    """Other programs, by the table's address and the environment."""
    part = TieredPartition(tmp_path, remote, OPTIONS)
    part.append(3, 4, 5)
    part.commit(part.upload(part.plan()))
    uri, options = part.table.uri, storage_options(part.table.uri, OPTIONS)
    listed = [segment.path for segment in part.table.load().all_segments()]
    ours = pq.read_table(io.BytesIO(remote.read(f"{part.table.folder}/{listed[0]}")))
    theirs = deltalake.DeltaTable(uri, storage_options=options).to_pyarrow_table()
    assert sorted(theirs.column("offset").to_pylist()) == list(range(12))
    polars = pytest.importorskip("polars")
    credentials = {name: value for name, value in options.items() if name.startswith(("azure", "google", "allow"))}
    by_polars = polars.read_delta(uri, storage_options=credentials, columns=["offset", "value"]).sort("offset")
    assert by_polars["offset"].to_list() == list(range(12))
    assert by_polars["value"].to_list()[: len(ours)] == ours.column("value").to_pylist()


def test_drivers_with_one_plan_commit_every_offset_once(remote: Store) -> None:
    check_commits_at_once(remote, OPTIONS, 3)


def test_a_container_that_is_missing_is_named_and_no_secret_is(azure_endpoint: CloudEndpoint) -> None:
    missing = table_in(open_store("az://no-such-container/x", OPTIONS), options=OPTIONS)
    with pytest.raises(StorageError, match="no-such-container") as caught:
        missing.load()
    for text in (str(caught.value), repr(missing), str(vars(missing))):
        assert ACCOUNT_KEY not in text
