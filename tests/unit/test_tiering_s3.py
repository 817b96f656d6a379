"""The remote tier on a real S3 server."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stratalog.partitions.errors import StorageError
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.s3 import S3Store
from stratalog.tiering import delta_options
from stratalog.tiering.plan import UploadPlan
from tests.s3_server import SECRET_KEY, S3Endpoint
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import (
    OURS,
    TieredPartition,
    check_commits_at_once,
    check_life_of_a_table,
    table_in,
)
from tests.unit.together import together

pytestmark = pytest.mark.s3


@pytest.fixture
def options(s3_endpoint: S3Endpoint) -> StoreOptions:
    return StoreOptions(endpoint_url=s3_endpoint.url, region=s3_endpoint.region, timeout_s=10, retries=2)


@pytest.fixture
def remote(s3_endpoint: S3Endpoint, options: StoreOptions, request: pytest.FixtureRequest) -> S3Store:
    store = open_store(f"s3://{s3_endpoint.bucket}/{request.node.name}", options)
    assert isinstance(store, S3Store)
    return store


def test_a_table_on_s3_is_tiered_reused_after_a_crash_expired_and_deleted(
    remote: S3Store, options: StoreOptions, tmp_path: Path
) -> None:
    check_life_of_a_table(TieredPartition(tmp_path, remote, options))


def test_a_rewrite_by_others_is_seen_through_and_reverted(
    remote: S3Store, options: StoreOptions, tmp_path: Path
) -> None:
    part = TieredPartition(tmp_path, remote, options)
    part.append(3, 4)
    before = part.tier().log
    storage = delta_options.storage_options(part.table.uri, options)
    DeltaTable(part.table.uri, storage_options=storage).optimize.compact()
    log = part.table.load()
    assert (log.version, log.segments) == (2, before.segments)
    assert log.rewrite is not None
    last = log.of_partition(0)[-1]
    found = pa.Table.from_batches(part.table.records(last, SCHEMA))
    assert found["offset"].to_pylist() == list(range(3, 7))
    righted = part.table.undo_rewrites()
    assert (righted.version, righted.rewrite) == (3, None)
    part.append(2)
    assert part.tier().log.end(0) == 9


def test_drivers_with_one_plan_commit_every_offset_once(remote: S3Store, options: StoreOptions) -> None:
    """S3 without a lock table: the conditional put of the log entry decides."""
    check_commits_at_once(remote, options, 5)


def test_two_tier_runs_at_once_upload_and_commit_every_offset_once(
    remote: S3Store, options: StoreOptions, tmp_path: Path
) -> None:
    part = TieredPartition(tmp_path, remote, options)
    part.append(3, 4, 5, 6)
    plan = part.plan()

    def drive(number: int) -> None:
        for run in plan.runs:
            done = part.upload(UploadPlan(run.start, (run,)))
            table_in(remote, seed=number, options=options).commit(done, histories=OURS)

    together(partial(drive, 0), partial(drive, 1))
    log = part.table.load()
    assert [s.records for s in log.of_partition(0)] == [3, 4, 5, 6]
    part.table.check_objects(log)


def test_refusals_are_named_and_hold_no_secret(
    s3_endpoint: S3Endpoint, options: StoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = table_in(open_store("s3://no-such-bucket/x", options), options=options)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        missing.load()
    unreachable = StoreOptions(endpoint_url="http://127.0.0.1:1", region="us-east-1", timeout_s=1, retries=0)
    with pytest.raises(StorageError, match=r"cannot read the table|list s3://"):
        table_in(open_store(f"s3://{s3_endpoint.bucket}/x", unreachable), options=unreachable).load()
    for text in (repr(missing), str(vars(missing)), repr(options)):
        assert SECRET_KEY not in text
