"""Snapshots on a real S3 server: frozen by one conditional put, fetched from there and to there (KIP-630)."""

from __future__ import annotations

import pytest

from stratalog.partitions.errors import CorruptSegmentError
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from stratalog.snapshots.fetch import FetchedSnapshot
from tests.s3_server import S3Endpoint
from tests.unit.fetch_harness import VALUES, Leader, fetch
from tests.unit.snapshot_files import FOLDER, ID, names, read, stored, write, writer

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_endpoint: S3Endpoint, request: pytest.FixtureRequest) -> Store:
    options = StoreOptions(endpoint_url=s3_endpoint.url, region=s3_endpoint.region, timeout_s=10, retries=2)
    return open_store(f"s3://{s3_endpoint.bucket}/{request.node.name}", options)


def test_a_snapshot_is_frozen_once_and_read_by_one_request(store: Store) -> None:
    write(store, VALUES)
    with writer(store) as second:
        assert not second.freeze()
    before = store.counts.snapshot()
    listed = stored(store)
    lists = (store.counts - before).requests
    assert list(read(store).values()) == VALUES
    assert (store.counts - before).requests == 2 * lists + 1
    data = bytearray(store.read(listed.name))
    data[100] ^= 8
    store.delete([listed.name])
    store.create(listed.name, bytes(data))
    with pytest.raises(CorruptSegmentError):
        read(store)


def test_a_snapshot_is_fetched_from_there(store: Store) -> None:
    leader, follower = Leader(store), MemoryStore()
    write(store, VALUES)
    assert isinstance(fetch(follower, leader), FetchedSnapshot)
    assert follower.read(f"{FOLDER}/{ID.name}") == store.read(f"{FOLDER}/{ID.name}")


def test_a_snapshot_is_fetched_to_there(store: Store) -> None:
    leader = Leader()
    write(leader.store, VALUES)
    assert isinstance(fetch(store, leader), FetchedSnapshot)
    assert names(store) == [str(ID.name)]
    assert list(read(store).values()) == VALUES
