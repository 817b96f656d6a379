"""Bytes that are damaged on their way into a bucket: the server refuses them, and nothing gets a name.

Tiered records leave the local disk later, and no other step compares all of their bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import StorageError, UnsupportedStoreError
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.s3 import INLINE_COPY_BYTES, S3Store
from stratalog.partitions.store.s3_connection import client_of
from tests.s3_server import S3Endpoint
from tests.unit.scripted_server import Handler, obey, scripted_server

PART_BYTES = 5 * 1024 * 1024
SIZE = 2 * PART_BYTES + 1
DAMAGED_BYTE = 100
assert SIZE > INLINE_COPY_BYTES


def create(store: S3Store, _: LocalStore) -> bool:
    return store.create("name", random.Random(2).randbytes(1000))


def copy(store: S3Store, source: LocalStore) -> bool:
    [listed] = source.list("")
    return store.stage_copy(source, listed, "name").commit()


def write(store: S3Store, source: LocalStore) -> bool:
    writer = store.stage_writer("name")
    try:
        writer.file.write(source.read("source"))
        return writer.commit()
    finally:
        writer.abort()


@pytest.fixture
def source(tmp_path: Path) -> LocalStore:
    made = LocalStore(str(tmp_path))
    made.create("source", random.Random(1).randbytes(SIZE))
    return made


@pytest.fixture
def damage() -> Iterator[Callable[[StoreOptions], None]]:
    """Flip one bit of every object, or part of one, that is sent with these options from now on."""

    def flip(request: Any, **_: object) -> None:
        if request.method == "PUT" and request.body is not None:
            data = bytearray(request.body.read())
            data[DAMAGED_BYTE] ^= 1
            request.body = bytes(data)

    damaged: list[Any] = []

    def begin(options: StoreOptions) -> None:
        events = client_of(options).meta.events
        events.register("before-send.s3", flip)
        damaged.append(events)

    yield begin
    for events in damaged:
        events.unregister("before-send.s3", flip)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("put", "exclusive_multipart", "bytes_with_name"),
    [
        pytest.param(create, None, False, id="a small object"),
        pytest.param(copy, None, True, id="one conditional PUT"),
        pytest.param(copy, True, False, id="parts"),
        pytest.param(copy, False, False, id="parts that are named by a copy"),
        pytest.param(write, True, False, id="a writer's parts"),
    ],
)
def test_bytes_that_are_damaged_on_the_way_get_no_name(
    s3_endpoint: S3Endpoint,
    source: LocalStore,
    damage: Callable[[StoreOptions], None],
    put: Callable[[S3Store, LocalStore], bool],
    exclusive_multipart: bool | None,
    bytes_with_name: bool,
    request: pytest.FixtureRequest,
) -> None:
    options = StoreOptions(
        s3_endpoint.url,
        s3_endpoint.region,
        timeout_s=20.0,
        part_bytes=PART_BYTES,
        exclusive_multipart=exclusive_multipart,
        bytes_with_name=bytes_with_name,
    )
    store = S3Store(f"s3://{s3_endpoint.bucket}/damage/{request.node.callspec.id.replace(' ', '-')}", options)
    assert put(store, source)
    store.delete(["name"])
    damage(options)
    with pytest.raises(StorageError, match="BadDigest"):
        put(store, source)
    assert store.list("") == []


@pytest.mark.slow
def test_a_server_that_takes_damaged_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know x-amz-checksum-crc32 ignores it."""

    def ignore_checksums(request: Handler) -> None:
        objects = request.scripted.objects
        if "list-type" in request.path:
            request.answer(200, body=b"<ListBucketResult></ListBucketResult>")
        elif request.command == "POST" and "?delete" in request.path:
            objects.clear()
            request.answer(200, body=b"<DeleteResult/>")
        elif request.command == "POST":
            request.answer(200, body=b"<Result><UploadId>u</UploadId></Result>")
        elif request.command in ("HEAD", "DELETE"):
            request.answer(200)
        elif request.headers["x-amz-copy-source"] and request.path in objects:
            request.answer(412, "PreconditionFailed")
        elif request.headers["x-amz-copy-source"]:
            objects[request.path] = objects["part"]
            request.answer(200, body=b"<CopyObjectResult/>")
        elif "partNumber" in request.path:
            objects.setdefault("part", request.body)
            request.answer(200, etag="part")
        else:
            obey(request)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "scripted-secret")
    with scripted_server() as server:
        server.script = [ignore_checksums]
        options = StoreOptions(server.url, "us-east-1", timeout_s=0.5, retries=0)
        with pytest.raises(UnsupportedStoreError, match="accepted bytes with a wrong checksum"):
            S3Store("s3://bucket/prefix", options, ManualClock(), rng=random.Random(1)).check()
        assert not any("check" in name for name in server.objects)
