"""The reasons why obstore 0.12 does not send the requests of the stores (docs/platforms.md): the rules that it
violates.

If a test fails with a newer obstore, the rule is kept now.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.file_system import FileSystemStore
from stratalog.partitions.store.s3 import S3Store
from tests.unit.scripted_server import (
    Handler,
    ScriptedServer,
    conflict,
    forbidden,
    obey,
    obey_and_lose_the_answer,
    scripted_server,
)

obstore = pytest.importorskip("obstore")
SECRET = "scripted-secret"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with scripted_server() as scripted:
        yield scripted


def plain(url: str, **more: Any) -> Any:
    """A plain store of obstore."""
    return obstore.store.S3Store(
        "bucket",
        endpoint=url,
        region="us-east-1",
        access_key_id="scripted",
        secret_access_key=SECRET,
        client_options={"allow_http": True, "timeout": "5s"},
        **more,
    )


def create(store: Any) -> None:
    obstore.put(store, "name", b"data", mode="create", use_multipart=False)


def test_a_conflict_is_reported_as_a_taken_name(server: ScriptedServer) -> None:
    """409 means that another client may be creating the name, so a retry is right. 412 means that it exists."""
    for make, expected in ((_by_obstore, False), (_by_botocore, True)):
        server.begin_anew()
        server.script = [conflict, lambda request: request.answer(404, "NoSuchKey"), obey]
        assert make(server.url).create("name", b"data") is expected
    server.begin_anew()
    server.script = [conflict, obey]
    store = _by_obstore(server.url)
    assert store.create("name", b"data") is False
    with pytest.raises(FileNotFoundError):
        store.read("name")


def test_by_default_a_create_is_sent_again_and_mistakes_its_own_object_for_anothers(
    server: ScriptedServer,
) -> None:
    """Without its retries obstore sends once, but reports a lost answer as text only."""
    server.script = [obey_and_lose_the_answer, obey]
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        create(plain(server.url))
    server.begin_anew()
    server.script = [obey_and_lose_the_answer]
    with pytest.raises(obstore.exceptions.GenericError) as lost:
        create(plain(server.url, retry_config={"max_retries": 0}))
    assert len(server.requests) == 1
    with pytest.raises(obstore.exceptions.GenericError) as never_sent:
        create(plain("http://127.0.0.1:9", retry_config={"max_retries": 0}))
    assert type(lost.value) is type(never_sent.value), "one may have taken effect, the other cannot have"


_FORKED = """
import multiprocessing, os, sys
import obstore
store = obstore.store.S3Store("bucket", endpoint=sys.argv[1], region="us-east-1", access_key_id="a",
    secret_access_key="b", client_options={"allow_http": True, "timeout": "5s"})
obstore.put(store, "name", b"data", mode="create", use_multipart=False)
receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
def child():
    fresh = obstore.store.S3Store("bucket", endpoint=sys.argv[1], region="us-east-1", access_key_id="a",
        secret_access_key="b", client_options={"allow_http": True, "timeout": "5s"})
    sender.send(bytes(obstore.get(fresh, "name").bytes()))
forked = multiprocessing.get_context("fork").Process(target=child)
forked.start()
print(receiver.recv() if receiver.poll(8) else "no answer", flush=True)
forked.kill()
"""


@pytest.mark.long("waits until it is clear that no answer comes")
def test_a_forked_child_gets_no_answer_once_its_parent_has_asked_anything(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """Spark forks its Python workers; the threads of obstore's runtime do not run in a child. ``spawn`` works.

    The fork can also end the parent with SIGSEGV; the remaining child is ended with its process group.
    """

    def serve(request: Handler) -> None:
        if request.command == "GET":
            request.more = {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
            request.answer(200, body=b"data", etag="tag")
        else:
            obey(request)

    server.script = [serve]
    printed = tmp_path / "printed"
    with printed.open("w") as output:
        parent = subprocess.Popen(
            [sys.executable, "-c", _FORKED, server.url], stdout=output, stderr=output, start_new_session=True
        )
    try:
        status = parent.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
    assert (status, printed.read_text().strip()) == (0, "no answer") or status == -signal.SIGSEGV
    assert "data" not in printed.read_text()
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(_read, (server.url,)) == b"data"


def _read(url: str) -> bytes:
    return bytes(obstore.get(plain(url), "name").bytes())


def test_a_pickle_holds_the_secret_and_messages_do_not(server: ScriptedServer) -> None:
    """So a task would have to make its own store, as ours do."""
    store = plain(server.url)
    assert SECRET.encode() in pickle.dumps(store)
    assert SECRET not in repr(store)
    server.script = [forbidden]
    with pytest.raises(obstore.exceptions.PermissionDeniedError) as refused:
        create(store)
    assert SECRET not in str(refused.value)


def test_obstore_lacks_the_calls_that_sweeps_and_checks_need() -> None:
    """obstore has no listing of incomplete uploads. A creation sends no checksum to the server, and returns none
    of the answer's headers (the server's time, the key of encryption).
    """
    assert [name for name in dir(obstore) if "upload" in name or "multipart" in name] == []
    given = set(inspect.signature(obstore.put).parameters)
    assert given == {
        *("store", "path", "file", "attributes", "tags", "mode"),
        *("use_multipart", "chunk_size", "max_concurrency"),
    }
    memory = obstore.store.MemoryStore()
    assert set(obstore.put(memory, "name", b"data")) == {"e_tag", "version"}


def _by_obstore(url: str) -> FileSystemStore:
    options = StoreOptions(
        url, "us-east-1", retries=1, driver="fsspec", file_system="tests.unit.obstore_files:s3_files"
    )
    return FileSystemStore("s3://bucket/prefix", options, ManualClock())


def _by_botocore(url: str) -> S3Store:
    return S3Store("s3://bucket/prefix", StoreOptions(url, "us-east-1", retries=1), ManualClock())
