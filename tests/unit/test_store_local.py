"""Promises of the store on a file system: names by link, durability, full disks, litter."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    ListingUnstableError,
    LogDirError,
    OutcomeUnknownError,
    SourceChangedError,
    StorageError,
    UnsupportedStoreError,
)
from stratalog.partitions.store import StoredObject
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.local_copy import BUFFER_BYTES, copy_file
from stratalog.partitions.store.local_staged import StagedFile
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.rules import stable_listing
from tests.clocks import FolderByClock
from tests.unit.store_kinds import leftovers

MIB = 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


@contextmanager
def disk_full_after(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond this size: a real refusal by the kernel, without a small disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def staged_files(store: LocalStore) -> list[str]:
    return os.listdir(Path(store.root, ".staging"))


def only(store: LocalStore | MemoryStore) -> StoredObject:
    [found] = store.list("")
    return found


class TestFullDisk:
    def test_create_names_the_path_and_leaves_nothing(self, store: LocalStore) -> None:
        with disk_full_after(100_000), pytest.raises(StorageError, match="folder/name"):
            store.create("folder/name", bytes(MIB))
        assert store.list("") == []
        assert staged_files(store) == []
        assert store.create("folder/name", b"later")

    def test_a_writer_fails_where_it_writes(self, store: LocalStore) -> None:
        staged = store.stage_writer("folder/name")
        with disk_full_after(100_000), pytest.raises(StorageError, match="folder/name"):
            staged.file.write(bytes(3 * MIB))
        with disk_full_after(100_000):
            staged.abort()
        assert store.list("") == []
        assert staged_files(store) == []

    def test_a_writer_fails_at_commit_where_bytes_wait_in_its_buffer(self, store: LocalStore) -> None:
        staged = store.stage_writer("folder/name")
        staged.file.write(bytes(MIB // 2))
        with disk_full_after(100_000), pytest.raises(StorageError, match="folder/name"):
            staged.commit()
        assert store.list("") == []
        assert staged_files(store) == []

    @pytest.mark.parametrize("kind", ["file", "memory"])
    def test_a_copy_to_a_full_disk_leaves_no_staged_file(
        self, store: LocalStore, tmp_path_factory: pytest.TempPathFactory, kind: str
    ) -> None:
        source = MemoryStore() if kind == "memory" else LocalStore(str(tmp_path_factory.mktemp("source")))
        source.create("name", bytes(MIB))
        with disk_full_after(100_000), pytest.raises(StorageError, match="name"):
            store.stage_copy(source, only(source), "name")
        assert staged_files(store) == []

    def test_a_failed_write_names_its_path_and_leaves_no_staged_file(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            with pytest.raises(StorageError, match=r"name.*No space left"):
                store.create("name", b"data")
        assert staged_files(store) == []


class TestRoot:
    def test_a_root_that_is_gone_fails_every_call_and_is_not_recreated(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.mkdir()
        store = LocalStore(str(root))
        store.create("folder/name", b"data")
        before = only(store)
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        root.rmdir()
        with pytest.raises(StorageError):
            store.create("folder/other", b"")
        with pytest.raises(BrokerUnreachableError):
            store.list("folder")
        with pytest.raises(SourceChangedError):
            store.open(before)
        with pytest.raises(LogDirError):
            store.check()
        for call in (store.staged, lambda: store.sweep_staging(0)):
            with pytest.raises(BrokerUnreachableError, match="does not exist: is its volume mounted"):
                call()
        with pytest.raises(StorageError, match=r"cannot delete .*does not exist: is its volume mounted"):
            store.delete(["folder/name"])
        assert not root.exists()

    def test_a_root_that_is_a_file_is_no_root(self, tmp_path: Path) -> None:
        Path(tmp_path, "file").write_text("")
        with pytest.raises(LogDirError):
            LocalStore(str(tmp_path / "file")).check()

    def test_a_root_that_cannot_be_written_is_refused(self, store: LocalStore) -> None:
        with disk_full_after(0), pytest.raises(LogDirError, match="cannot be written"):
            store.check()

    def test_a_folder_that_was_removed_meanwhile_is_recreated(self, store: LocalStore, tmp_path: Path) -> None:
        store.create("a/b/1", b"")
        store.delete(["a/b/1"])
        Path(tmp_path, "a/b").rmdir()
        Path(tmp_path, "a").rmdir()
        assert store.create("a/b/2", b"")
        assert [each.name for each in store.list("a")] == ["a/b/2"]


class TestNames:
    def test_without_hard_links_the_store_is_refused(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(
            UnsupportedStoreError,
            match=r"without hard links.*/Volumes, /dbfs, FUSE.* use the bucket's address, s3://",
        ):
            store.check()

    def test_a_link_that_was_made_but_not_answered_is_ours(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NFS repeats a request whose answer was lost; the repetition gets the answer that the name is taken."""
        link = os.link

        def answer_lost(source: str, target: str, **options: Any) -> None:
            link(source, target, **options)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

        monkeypatch.setattr(os, "link", answer_lost)
        assert store.create("name", b"data") is True

    def test_a_taken_name_is_not_ours_however_many_links_our_file_has(
        self, store: LocalStore, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """A root is backed up with hard links (cp -al, rsnapshot) while an object is staged in it."""
        ours = store.stage_writer("name")
        ours.file.write(b"ours")
        [temporary] = Path(store.root, ".staging").iterdir()
        os.link(temporary, tmp_path_factory.mktemp("backup") / temporary.name)
        assert store.create("name", b"theirs")
        assert ours.commit() is False
        assert store.read("name") == b"theirs"

    def test_a_name_that_may_not_survive_is_an_unknown_outcome(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        staged = store.stage_copy(source := MemoryStore(), _create(source), "name")
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OutcomeUnknownError, match="name"):
            staged.commit()

    def test_new_folders_are_synced_up_to_the_root(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        fsync = os.fsync

        def recording(descriptor: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", recording)
        store.create("a/b/name", b"data")
        root = str(tmp_path)
        assert synced[1:] == [root, f"{root}/a", f"{root}/a/b"]
        synced.clear()
        store.create("a/b/other", b"data")
        assert synced[1:] == [f"{root}/a/b"]

    def test_an_inode_that_is_used_again_in_the_same_tick_has_another_version(self, store: LocalStore) -> None:
        versions = set()
        for _ in range(50):
            store.create("name", b"same")
            versions.add(only(store).version)
            store.delete(["name"])
        assert len(versions) == 50


def _create(store: MemoryStore) -> StoredObject:
    store.create("name", b"data")
    return only(store)


class TestReading:
    def test_a_reader_keeps_the_bytes_of_a_deleted_file(self, store: LocalStore) -> None:
        store.create("name", b"data")
        with store.open(only(store)) as reader:
            store.delete(["name"])
            assert reader.read() == b"data"

    def test_a_file_that_was_changed_in_place_is_not_the_one_listed(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        store.create("name", b"data")
        before = only(store)
        Path(tmp_path, "name").write_bytes(b"DATA")
        with pytest.raises(SourceChangedError):
            store.open(before)


class TestSettling:
    def test_a_listing_is_what_two_in_a_row_agree_on(self) -> None:
        seen = iter(["a", "b", "a", "c", "c", "d"])
        assert stable_listing(lambda: next(seen), "folder", lambda first, second: None) == "c"

    def test_a_listing_may_be_the_combination_of_two_in_a_row(self) -> None:
        seen = iter(["a", "b", "a", "aa", "c"])

        def together(first: str, second: str) -> str | None:
            return f"{first}+{second}" if second.startswith(first) else None

        assert stable_listing(lambda: next(seen), "folder", together) == "a+aa"

    def test_a_folder_that_never_rests_has_no_listing(self) -> None:
        with pytest.raises(ListingUnstableError, match="folder"):
            stable_listing(itertools.count().__next__, "folder", lambda first, second: None)

    def test_a_snapshot_needs_no_second_look(self) -> None:
        seen = iter(["page", "other"])
        assert stable_listing(lambda: next(seen), "folder", lambda *_: None, lambda _: True) == "page"

    @pytest.mark.parametrize("listed", [LocalStore.list, LocalStore.names])
    def test_a_file_that_appears_meanwhile_is_listed(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        listed: Callable[[LocalStore, str], Iterable[object]],
    ) -> None:
        """Such a file may exist only because the visible one is gone: a scan may show neither."""
        root, empty = tmp_path / "root", tmp_path / "empty"
        root.mkdir()
        empty.mkdir()
        (root / "a").touch()
        scans = itertools.count()

        def scan(folder: int) -> Any:
            if next(scans) > 0:
                return real(folder)
            (root / "b").touch()
            (root / "a").unlink()
            return real(str(empty))

        real = os.scandir
        monkeypatch.setattr(os, "scandir", scan)
        found = listed(LocalStore(str(root)), "")
        assert {getattr(one, "name", one) for one in found} == {"b"}

    @pytest.mark.parametrize("listed", [LocalStore.list, LocalStore.names, LocalStore.walk])
    def test_a_scan_that_begins_again_shows_each_name_once(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        listed: Callable[[LocalStore, str], Iterable[object]],
    ) -> None:
        """A scan of tmpfs may begin again beside a concurrent writer in the folder."""
        for name in "ab":
            (tmp_path / name).touch()
        real = os.scandir

        @contextmanager
        def twice(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
            with real(folder) as entries:
                found = list(entries)
            yield iter([*found, *found])

        monkeypatch.setattr(os, "scandir", twice)
        found = [getattr(one, "name", one) for one in listed(LocalStore(str(tmp_path)), "")]
        assert sorted(map(str, found)) == ["a", "b"]


class TestCopyFile:
    @pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 7])
    def test_a_copy_shows_the_checksum_of_the_bytes_that_it_wrote(self, tmp_path: Path, size: int) -> None:
        data = random.Random(size).randbytes(size)
        Path(tmp_path, "source").write_bytes(data)
        with open(tmp_path / "source", "rb") as source, open(tmp_path / "target", "wb") as target:
            assert copy_file(source.fileno(), target.fileno(), len(data)) == zlib.crc32(data)
        assert Path(tmp_path, "target").read_bytes() == data

    def test_a_copy_stops_where_the_source_ends(self, tmp_path: Path) -> None:
        Path(tmp_path, "source").write_bytes(b"short")
        with open(tmp_path / "source", "rb") as source, open(tmp_path / "target", "wb") as target:
            assert copy_file(source.fileno(), target.fileno(), 100) == zlib.crc32(b"short")
        assert Path(tmp_path, "target").read_bytes() == b"short"

    def test_a_full_disk_is_reported_and_gets_no_more_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another thread continues the write."""

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        store = LocalStore(str(tmp_path))
        assert store.create("here", bytes(3 * BUFFER_BYTES))
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="No space left"):
            store.stage_copy(store, only(store), "there")
        assert staged_files(store) == []


class TestSweep:
    def test_a_sweep_removes_files_of_dead_writers_and_nothing_younger(self, tmp_path: Path) -> None:
        clock = ManualClock(SystemClock().now_ms())
        store = FolderByClock(str(tmp_path), clock)
        dead = store.stage_writer("dead")
        dead.file.write(b"data")
        assert store.sweep_staging(60_000) == 0
        clock.advance_ms(120_000)
        assert store.sweep_staging(60_000) == 1
        assert staged_files(store) == []
        with pytest.raises(StorageError):
            dead.commit()
        assert store.list("") == []

    def test_a_foreign_folder_stays_and_keeps_nothing_else_from_going(self, tmp_path: Path) -> None:
        clock = ManualClock(SystemClock().now_ms() + 120_000)
        store = FolderByClock(str(tmp_path), clock)
        theirs = tmp_path / ".staging" / "theirs"
        theirs.mkdir(parents=True)
        for name in "abc":
            (tmp_path / ".staging" / name).touch()
        assert store.sweep_staging(60_000, dry_run=True) == store.sweep_staging(60_000) == 3
        assert staged_files(store) == ["theirs"]


def test_a_file_whose_close_fails_is_closed_once(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is free again, and may be another thread's file by the time of a second close."""
    closed: list[int] = []
    close, seals = os.close, StagedFile.seal

    def fails(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    def seal(staged: StagedFile) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", fails)
            seals(staged)

    monkeypatch.setattr(StagedFile, "seal", seal)
    with pytest.raises(StorageError, match="Input/output error"):
        store.create("name", b"data")
    assert (len(closed), store.names(""), leftovers(store)) == (1, frozenset(), 0)
