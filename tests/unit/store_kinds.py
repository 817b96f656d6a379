"""The kinds of stores, for the tests of their common contract (``test_store_contract_*``)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.partitions.store import Store, StoredObject, StoreOptions, open_store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.object import ObjectStore
from tests.cloud_servers import CloudEndpoint
from tests.s3_server import S3Endpoint

PART_BYTES = 5 * 1024 * 1024
"""The smallest part of a multipart upload to S3."""

SIZES = [0, 1, PART_BYTES + 1]

CLOUDS = ("azure", "gcs")
FILE_SYSTEMS = {"adlfs": "azure", "gcsfs": "gcs", "obstore-azure": "azure", "obstore-gcs": "gcs"}
"""File systems of fsspec, and the server of each."""
S3 = pytest.mark.s3
CLOUD = (pytest.mark.s3, pytest.mark.nightly)
KINDS = [
    "memory",
    "file",
    pytest.param("s3", marks=S3),
    pytest.param("s3-multipart", marks=S3),
    pytest.param("s3fs", marks=S3),
    pytest.param("obstore", marks=CLOUD),
    pytest.param("azure", marks=CLOUD),
    pytest.param("gcs", marks=CLOUD),
    pytest.param("adlfs", marks=CLOUD),
    pytest.param("gcsfs", marks=CLOUD),
    pytest.param("obstore-azure", marks=CLOUD),
    pytest.param("obstore-gcs", marks=CLOUD),
]
PAIRS = [
    pytest.param(a, b, marks=() if {a, b} <= {"memory", "file"} else CLOUD if {a, b} & set(CLOUDS) else S3)
    for a, b in itertools.product(["memory", "file", "s3", "s3fs", *CLOUDS], repeat=2)
    if (a not in CLOUDS or b == a or b == "file") and (b != "s3fs" or a in ("file", "s3fs"))
]
"""Sources and targets of copies: from a cloud to itself and to a folder; the other pairs are similar."""

_fresh = itertools.count()

OpenKind = Callable[[str], Store]


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, tmp_path: Path) -> OpenKind:
    """Opens a store of a kind, empty and separate at each call."""

    def opened(kind: str) -> Store:
        number = next(_fresh)
        if kind == "memory":
            return open_store(f"memory://contract-{number}")
        if kind == "file":
            root = tmp_path / f"root-{number}"
            root.mkdir()
            return open_store(root.as_uri())
        if kind in FILE_SYSTEMS or kind in CLOUDS:
            server = FILE_SYSTEMS.get(kind, kind)
            cloud: CloudEndpoint = request.getfixturevalue(f"{server}_endpoint")
            options = StoreOptions(part_bytes=PART_BYTES, driver="fsspec" if kind in FILE_SYSTEMS else None)
            if kind.startswith("obstore"):
                pytest.importorskip("obstore")
                options = replace(options, file_system=f"tests.unit.obstore_files:{server}_files")
            return open_store(f"{cloud.root}/contract-{number}", options)
        endpoint: S3Endpoint = request.getfixturevalue("s3_endpoint")
        exclusive = True if kind == "s3-multipart" else None
        if kind in ("s3fs", "obstore"):
            pytest.importorskip(kind)
        options = StoreOptions(
            endpoint.url,
            endpoint.region,
            part_bytes=PART_BYTES,
            exclusive_multipart=exclusive,
            driver="fsspec" if kind in ("s3fs", "obstore") else None,
            file_system="tests.unit.obstore_files:s3_files" if kind == "obstore" else None,
        )
        return open_store(f"s3://{endpoint.bucket}/contract-{number}", options)

    return opened


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, open_kind: OpenKind) -> Store:
    return open_kind(request.param)


def listed(store: Store, name: str) -> StoredObject:
    """The only object of that name in a listing."""
    [found] = [each for each in store.list("") if each.name == name]
    return found


def names(store: Store, prefix: str = "") -> list[str]:
    return [each.name for each in store.list(prefix)]


def some_bytes(size: int, salt: int = 0) -> bytes:
    """Bytes without a pattern, so that a misplaced piece is detected; the same arguments give the same bytes."""
    return random.Random(salt).randbytes(size)


def leftovers(store: Store) -> int:
    """The number of staged objects of any age."""
    if isinstance(store, ObjectStore):
        _, staged = store._objects.list(f"{store.prefix}/.staging/")
        return len(list(store._objects.uploads(store.prefix + "/"))) + len(staged)
    if isinstance(store, LocalStore):
        staging = Path(store.root, ".staging")
        return len(list(staging.iterdir())) if staging.exists() else 0
    return 0
