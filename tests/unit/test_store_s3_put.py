"""Large objects are streamed in one request if giving them a name would move their bytes twice."""

from __future__ import annotations

import base64
import io
import os
import random
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError, SourceChangedError, StorageError
from stratalog.partitions.store import StoredObject, StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.s3 import INLINE_COPY_BYTES, S3Store
from stratalog.partitions.store.s3_put import LARGEST_PUT_BYTES, StagedPut
from stratalog.partitions.store.s3_upload import StagedUpload
from tests.s3_server import S3Endpoint
from tests.unit.scripted_server import (
    Handler,
    ScriptedServer,
    busy,
    forbidden,
    garble,
    obey,
    obey_and_lose_the_answer,
    stall,
)
from tests.unit.test_store_s3 import RETRIES, TIMEOUT_S

KEY = "/bucket/prefix/name"
SIZE = INLINE_COPY_BYTES + 1
HEADERS = ("x-amz-checksum-crc32", "If-None-Match", "Content-Length")


@pytest.fixture
def source(tmp_path: Path) -> LocalStore:
    made = LocalStore(str(tmp_path))
    made.create("source", random.Random(1).randbytes(SIZE))
    return made


def remote(url: str, *, exclusive: bool = False, late: bool = True) -> S3Store:
    options = StoreOptions(
        url, "us-east-1", timeout_s=TIMEOUT_S, retries=RETRIES, exclusive_multipart=exclusive, bytes_with_name=late
    )
    return S3Store("s3://bucket/prefix", options, ManualClock(), rng=random.Random(1))


def staged(store: S3Store, source: LocalStore) -> StagedPut:
    [listed] = source.list("")
    found = store.stage_copy(source, listed, "name")
    assert isinstance(found, StagedPut)
    return found


@pytest.mark.slow
def test_the_bytes_travel_with_the_name_and_once(server: ScriptedServer, source: LocalStore) -> None:
    store = remote(server.url)
    put = staged(store, source)
    assert (server.requests, put.size_bytes) == ([], SIZE)
    assert put.commit() is True
    assert server.requests == [f"PUT {KEY}"]
    assert server.objects == {KEY: source.read("source")}
    assert (store.counts.creates, store.counts.copies, store.counts.written_bytes) == (1, 0, SIZE)


def test_the_server_reports_what_it_should_have_received(server: ScriptedServer, source: LocalStore) -> None:
    """Bytes that are damaged on the way are refused, and not named."""
    seen: dict[str, str | None] = {}

    def note(request: Handler) -> None:
        seen.update({name: request.headers[name] for name in HEADERS})
        obey(request)

    server.script = [note]
    assert staged(remote(server.url), source).commit()
    crc32 = base64.b64encode(zlib.crc32(source.read("source")).to_bytes(4, "big")).decode()
    assert [seen[name] for name in HEADERS] == [crc32, "*", str(SIZE)]


def test_a_name_that_is_taken_stays_as_it_is(server: ScriptedServer, source: LocalStore) -> None:
    server.objects[KEY] = b"theirs"
    assert staged(remote(server.url), source).commit() is False
    assert server.objects[KEY] == b"theirs"


def test_a_busy_server_gets_all_of_it_again(server: ScriptedServer, source: LocalStore) -> None:
    """503 SlowDown, twice."""
    server.script = [busy, busy, obey]
    assert staged(remote(server.url), source).commit() is True
    assert server.objects == {KEY: source.read("source")}


def test_a_lost_answer_of_our_own_success_reads_as_taken(server: ScriptedServer, source: LocalStore) -> None:
    server.script = [obey_and_lose_the_answer, obey]
    assert staged(remote(server.url), source).commit() is False
    assert server.objects == {KEY: source.read("source")}


@pytest.mark.parametrize("behaviour", [pytest.param(stall, marks=pytest.mark.slow), busy, garble])
def test_without_any_answer_the_outcome_is_unknown(
    server: ScriptedServer, source: LocalStore, behaviour: Callable[[Handler], None]
) -> None:
    server.script = [behaviour]
    with pytest.raises(OutcomeUnknownError, match="prefix/name"):
        staged(remote(server.url), source).commit()


def quota_exceeded(request: Handler) -> None:
    request.answer(403, "QuotaExceeded")


@pytest.mark.parametrize(
    ("behaviour", "message"), [(forbidden, "AccessDenied"), (quota_exceeded, "QuotaExceeded")]
)
@pytest.mark.slow
def test_a_refusal_is_named_and_holds_no_secret(
    server: ScriptedServer, source: LocalStore, behaviour: Callable[[Handler], None], message: str
) -> None:
    """The cases are a wrong credential and a full bucket."""
    server.script = [behaviour]
    with pytest.raises(StorageError, match=message) as caught:
        staged(remote(server.url), source).commit()
    assert "scripted" not in str(caught.value)
    assert len(server.requests) == 1


def test_a_source_that_is_replaced_before_the_name_is_not_sent(server: ScriptedServer, source: LocalStore) -> None:
    put = staged(remote(server.url), source)
    source.delete(["source"])
    source.create("source", b"x" * SIZE)
    with pytest.raises(SourceChangedError):
        put.commit()
    assert server.requests == []


class Shrunk(LocalStore):
    """A source whose objects end before their listed size."""

    def open(self, source_object: StoredObject) -> BinaryIO:
        data = super().open(source_object).read()
        return cast(BinaryIO, io.BytesIO(data[:-1]))


def test_a_source_that_ends_too_early_is_found_before_anything_is_sent(
    server: ScriptedServer, source: LocalStore
) -> None:
    with pytest.raises(SourceChangedError, match="has been replaced since it was listed"):
        staged(remote(server.url), Shrunk(source.root))
    assert server.requests == []


class Watched(LocalStore):
    """Records the sizes of reads."""

    most = 0

    def open(self, source_object: StoredObject) -> BinaryIO:
        reader, watched = super().open(source_object), self

        class Reader(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def seekable(self) -> bool:
                return True

            def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
                return reader.seek(offset, whence)

            def tell(self) -> int:
                return reader.tell()

            def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
                watched.most = max(watched.most, len(buffer))
                data = reader.read(len(buffer))
                buffer[: len(data)] = data
                return len(data)

            def readall(self) -> bytes:
                raise AssertionError("all of it at once")

        return cast(BinaryIO, Reader())


def test_only_a_buffer_of_it_is_in_memory_however_large_it_is(server: ScriptedServer, source: LocalStore) -> None:
    watched = Watched(source.root)
    assert staged(remote(server.url), watched).commit()
    assert 0 < watched.most <= 1024 * 1024
    assert server.objects == {KEY: source.read("source")}


def test_a_finished_put_cannot_be_committed(server: ScriptedServer, source: LocalStore) -> None:
    put = staged(remote(server.url), source)
    put.abort()
    with pytest.raises(InvalidCallError, match="committed or aborted"):
        put.commit()
    assert server.requests == []


@pytest.mark.parametrize(
    ("exclusive", "late", "size"),
    [(True, True, SIZE), (False, False, SIZE), (False, True, LARGEST_PUT_BYTES + 1)],
    ids=["uploads are completed exclusively", "a replica", "too large"],
)
def test_all_else_goes_up_in_parts_before_it_gets_its_name(
    server: ScriptedServer, tmp_path: Path, exclusive: bool, late: bool, size: int
) -> None:
    """For replicas, the name may appear only after the bytes were read (protocol section 3, step 4)."""

    def begin(request: Handler) -> None:
        request.answer(403, "MultipartWasBegun")

    server.script = [begin]
    with (tmp_path / "source").open("wb") as file:
        os.truncate(file.fileno(), size)
    folder = LocalStore(str(tmp_path))
    [listed] = folder.list("")
    with pytest.raises(StorageError, match=r"cannot begin .*MultipartWasBegun"):
        remote(server.url, exclusive=exclusive, late=late).stage_copy(folder, listed, "name")
    assert server.requests == [request for request in server.requests if "?uploads" in request]


@pytest.mark.s3
def test_exactly_one_of_the_objects_that_race_for_a_name_gets_it(
    s3_endpoint: S3Endpoint, source: LocalStore
) -> None:
    """The real server: a conditional PUT is atomic there, while two completions of an upload are not."""
    options = StoreOptions(s3_endpoint.url, s3_endpoint.region, bytes_with_name=True)
    store = S3Store(f"s3://{s3_endpoint.bucket}/put/race", options)
    [listed] = source.list("")
    puts = [store.stage_copy(source, listed, "name") for _ in range(4)]
    assert not any(isinstance(put, StagedUpload) for put in puts)
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda put: put.commit(), puts)) == [False, False, False, True]
    assert store.read("name") == source.read("source")
