"""Errors of storage that accepts no writes: the system's answer, and the remedy."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.partitions.errors import (
    LogDirError,
    OutcomeUnknownError,
    StorageAuthorizationError,
    StorageError,
    StratalogError,
)
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.local_rights import failure_of
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.mounts import fill_up, remount, tmpfs
from tests.unit.scripted_server import Handler, ScriptedServer, scripted_server
from tests.unit.test_store_s3 import store_on

STORAGE, RIGHTS = "KAFKA_STORAGE_ERROR", "CLUSTER_AUTHORIZATION_FAILED"
CREATE_THERE = "give this user the right to create there, or run the job as another user"

FAILURES = [
    # (the system's answer, action, kind, code, sentence, remedy)
    ("EROFS", "create", UnwritableStorageError, STORAGE, "Read-only file system", "Remount it read-write"),
    ("EROFS", "delete", UnwritableStorageError, STORAGE, "Read-only file system", "Remount it read-write"),
    ("EROFS", "copy to", UnwritableStorageError, STORAGE, "Read-only file system", "Remount it read-write"),
    ("ENOSPC", "write", UnwritableStorageError, STORAGE, "No space left on device", "Free or add space there"),
    ("ENOSPC", "copy to", UnwritableStorageError, STORAGE, "No space left on device", "Free or add space there"),
    ("EDQUOT", "write", UnwritableStorageError, STORAGE, "Disk quota exceeded", "Raise the quota"),
    ("EIO", "write", UnwritableStorageError, STORAGE, "Input/output error", "Read the system's log"),
    # The error may also come from the source.
    ("EIO", "copy to", StorageError, STORAGE, "Input/output error", "Read the system's log"),
    ("EIO", "read", StorageError, STORAGE, "Input/output error", "Read the system's log"),
    ("EACCES", "create", StorageAuthorizationError, RIGHTS, "Permission denied", CREATE_THERE),
    ("EPERM", "create", StorageAuthorizationError, RIGHTS, "Operation not permitted", CREATE_THERE),
    ("ESTALE", "create", StorageError, STORAGE, "Stale file handle", ""),
]


@pytest.mark.parametrize(("answer", "action", "kind", "code", "sentence", "remedy"), FAILURES)
def test_each_answer_of_the_system_has_its_code_its_sentence_and_its_remedy(
    answer: str, action: str, kind: type[StorageError], code: str, sentence: str, remedy: str
) -> None:
    number = getattr(errno, answer)
    error = failure_of(action, "/b1/t-0/x", OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert error.code == code
    assert str(error).startswith(f"cannot {action} '/b1/t-0/x': {sentence}")
    assert remedy in str(error)
    assert ("give this user" in str(error)) == (code == RIGHTS)


@pytest.mark.parametrize(
    ("full", "message"),
    [
        (False, "Remount it read-write, or run `stratalog brokers fence 2` so that other replicas lead"),
        (
            True,
            "Remount it read-write, move partitions away (`stratalog reassign`), or run "
            "`stratalog brokers fence 2` so that other replicas lead",
        ),
    ],
)
def test_the_remedy_names_the_broker_even_in_another_process(full: bool, message: str) -> None:
    error = UnwritableStorageError("cannot create 'x': no. Remount it read-write", "x", full=full)
    error.broker_id = 2
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == f"cannot create 'x': no. {message}"


CALLS: dict[str, Callable[[LocalStore, LocalStore], object]] = {
    "create": lambda store, source: store.create("new", b"x" * 4096),
    "stage": lambda store, source: store.stage_writer("new"),
    "copy": lambda store, source: store.stage_copy(source, source.list("")[0], "new").commit(),
    "delete": lambda store, source: store.delete(["old"]),
    "sweep": lambda store, source: store.sweep_staging(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mount_that_is_read_only(tmp_path: Path, name: str) -> None:
    source = LocalStore(str(tmp_path / "source"))
    Path(source.root).mkdir()
    source.create("source", b"x")
    root = tmp_path / "root"
    root.mkdir()
    with tmpfs(root, "64k"):
        store = LocalStore(str(root))
        store.create("old", b"x")
        remount(root, "ro")
        with pytest.raises(UnwritableStorageError, match=r"Read-only file system\)?\. Remount it read-write"):
            CALLS[name](store, source)
        with pytest.raises(LogDirError, match="Read-only file system"):
            store.check()
        assert store.read("old") == b"x"
        assert [stored.name for stored in store.list("")] == ["old"]


@pytest.mark.parametrize("name", ["create", "copy"])
def test_a_full_disk_is_reported_until_there_is_space(tmp_path: Path, name: str) -> None:
    source = LocalStore(str(tmp_path / "source"))
    Path(source.root).mkdir()
    source.create("source", b"x" * 4096)
    root = tmp_path / "root"
    root.mkdir()
    with tmpfs(root, "64k"):
        store = LocalStore(str(root))
        ballast = fill_up(root)
        with pytest.raises(
            UnwritableStorageError, match=r"No space left on device\. Free or add space there"
        ) as full:
            CALLS[name](store, source)
        assert full.value.full
        ballast.unlink()
        CALLS[name](store, source)


@pytest.mark.parametrize(
    ("status", "code", "created"),
    [
        (403, "QuotaExceeded", UnwritableStorageError),
        (400, "XMinioAdminBucketQuotaExceeded", UnwritableStorageError),
        (507, "XMinioStorageFull", UnwritableStorageError),
        # The error may come from a server in between, and not from the storage.
        (507, "InsufficientStorage", OutcomeUnknownError),
    ],
)
def test_a_bucket_that_is_full_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, created: type[StratalogError]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "scripted-secret")

    def full(request: Handler) -> None:
        request.answer(404 if request.command == "HEAD" else status, code)

    with scripted_server() as server:
        server.script = [full]
        store = store_on(server.url)
        with pytest.raises(UnwritableStorageError, match=f"{status} {code}: the storage is full") as caught:
            store.stage_writer("name").file.write(b"x" * 2**24)
        assert (caught.value.code, caught.value.full) == (STORAGE, True)
        assert _posts(server) == 1
        with pytest.raises(created, match=code):
            store.create("name", b"x")


def _posts(server: ScriptedServer) -> int:
    return sum(request.startswith("POST") for request in server.requests)


@pytest.mark.parametrize("tiered_before", [False, True])
def test_a_remote_tier_that_is_read_only(tmp_path: Path, tiered_before: bool) -> None:
    """Any write may meet the error first: a copy of a segment, or the Delta table."""
    live = LiveCluster(tmp_path, brokers=1)
    live.tiered(copies=1)
    live.fill("a")
    with tmpfs(live.remote, "1m"):
        if tiered_before:
            live.cluster.tier()
            live.fill("b")
        remount(live.remote, "ro")
        failed = [str(one) for one in live.cluster.tier(check=False).failures if one.item.startswith("t")]
    assert len(failed) == 1
    text = r"t(-0)?: KAFKA_STORAGE_ERROR: .*Read-?only ?[Ff]ile ?[Ss]ystem.*\. Remount it read-write"
    assert re.fullmatch(text, failed[0]), failed
