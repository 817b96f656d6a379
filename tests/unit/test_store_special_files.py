"""A store on a file system follows no link, waits for no FIFO, and changes nothing outside its root."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import CorruptionError, CorruptSegmentError, StorageError, StratalogError
from stratalog.partitions.store import StoredObject
from stratalog.partitions.store import local_scan as scanning
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.unit.special_files import FILES, contents, put

NAME = "home/topic/0.7/file"
LEVELS = ["home", "home/topic", "home/topic/0.7"]
DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A foreign folder, in which every name of the tests is a link to an old file."""
    folder = tmp_path / "victim"
    for name in ["file", "other", *(f"{'/'.join(NAME.split('/')[level:])}" for level in (1, 2)), "0.7/other"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"theirs")
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    root = tmp_path / "root"
    root.mkdir()
    made = LocalStore(str(root), ManualClock(SystemClock().now_ms() + 2 * DAY_MS))
    assert made.create(NAME, b"ours")
    return made


def copied(store: LocalStore, name: str) -> bool:
    source = MemoryStore()
    source.create("source", b"data")
    return store.stage_copy(source, source.list("")[0], name).commit()


def streamed(store: LocalStore, name: str, replacing: bool = False) -> object:
    staged = store.stage_writer(name)
    staged.file.write(b"data")
    return staged.replace() if replacing else staged.commit()


CHANGES: dict[str, Callable[[LocalStore, StoredObject], object]] = {
    "create": lambda store, _: store.create("home/topic/0.7/new", b"data"),
    "stage_writer": lambda store, _: streamed(store, "home/topic/0.7/new"),
    "replace": lambda store, _: streamed(store, NAME, replacing=True),
    "stage_copy": lambda store, _: copied(store, "home/topic/0.7/new"),
    "delete": lambda store, _: store.delete([NAME]),
}
LOOKS: dict[str, Callable[[LocalStore, StoredObject], object]] = {
    "read": lambda store, _: store.read(NAME),
    "stat": lambda store, _: store.stat(NAME),
    "open": lambda store, before: store.open(before),
    "copy from": lambda store, before: MemoryStore().stage_copy(store, before, "x"),
    "list": lambda store, _: store.list("home/topic/0.7"),
    "names": lambda store, _: store.names("home/topic/0.7"),
    "walk": lambda store, _: store.walk("home/topic/0.7"),
}


@pytest.mark.parametrize("what", [*CHANGES, *LOOKS])
@pytest.mark.parametrize("level", LEVELS)
def test_a_linked_folder_is_named_and_nothing_behind_it_is_touched(
    store: LocalStore, victim: Path, level: str, what: str
) -> None:
    [before] = store.list("")
    put("link", Path(store.root, level), victim)
    theirs = contents(victim)
    with pytest.raises(StorageError if what == "delete" else CorruptionError) as raised:
        (CHANGES | LOOKS)[what](store, before)
    assert f"{store.root}/{level}" in str(raised.value)
    assert "symbolic link" in str(raised.value)
    assert contents(victim) == theirs


@pytest.mark.parametrize("what", ["read", "stat", "open", "copy from"])
@pytest.mark.parametrize("kind", FILES)
def test_an_object_that_is_no_file_is_named_at_once(store: LocalStore, victim: Path, kind: str, what: str) -> None:
    """A reader of a FIFO would wait for a writer."""
    [before] = store.list("")
    put(kind, Path(store.root, NAME), victim / "file")
    with pytest.raises(
        CorruptSegmentError if what in ("open", "copy from") else CorruptionError, match=re.escape(NAME)
    ):
        LOOKS[what](store, before)


@pytest.mark.parametrize("kind", FILES)
def test_an_object_that_is_no_file_is_listed_as_such_holds_its_name_and_stays(
    store: LocalStore, victim: Path, kind: str
) -> None:
    put(kind, Path(store.root, "home/topic/0.7/new"), victim / "file")
    theirs = contents(victim)
    [found] = [each for each in store.list("home") if each.special]
    assert (found.name, found.size_bytes) == ("home/topic/0.7/new", 0)
    assert {each.name for each in store.walk("home")} == store.names("home") == {found.name, NAME}
    assert not store.create(found.name, b"data")
    with pytest.raises(StorageError, match=r"0\.7/new"):
        store.delete([found.name, NAME])
    assert store.names("") == {found.name}, "the file beside it is gone"
    assert contents(victim) == theirs


def test_a_folder_where_a_file_should_be_is_named(store: LocalStore) -> None:
    with pytest.raises(CorruptionError, match="is a folder"):
        store.read("home/topic")
    with pytest.raises(FileNotFoundError):
        store.stat("home/topic")


class TestStaging:
    @pytest.mark.parametrize("what", ["create", "stage_writer", "stage_copy", "replace"])
    def test_nothing_is_staged_behind_a_link(self, store: LocalStore, victim: Path, what: str) -> None:
        [before] = store.list("")
        put("link", Path(store.root, ".staging"), victim)
        theirs = contents(victim)
        with pytest.raises(UnwritableStorageError, match=r"\.staging' is a symbolic link"):
            CHANGES[what](store, before)
        assert contents(victim) == theirs
        assert store.read(NAME) == b"ours"

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_a_sweep_deletes_nothing_behind_a_link(self, store: LocalStore, victim: Path, dry_run: bool) -> None:
        put("link", Path(store.root, ".staging"), victim)
        theirs = contents(victim)
        with pytest.raises(CorruptionError, match=r"\.staging' is a symbolic link"):
            store.sweep_staging(DAY_MS, dry_run=dry_run)
        assert contents(victim) == theirs

    def test_a_sweep_leaves_links_where_they_are(self, store: LocalStore, victim: Path) -> None:
        put("link", Path(store.root, ".staging/link"), victim)
        theirs = contents(victim)
        assert store.sweep_staging(0) == 0
        assert Path(store.root, ".staging/link").is_symlink()
        assert contents(victim) == theirs


def test_the_address_of_a_root_may_lead_over_links(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "address").symlink_to(store.root)
    linked = LocalStore(str(tmp_path / "address"))
    assert linked.create("home/topic/0.7/new", b"data")
    assert linked.read(NAME) == b"ours"
    assert linked.names("") == {NAME, "home/topic/0.7/new"}


def test_another_volume_below_the_root_is_named_and_not_entered(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the superuser can mount a volume, so here a folder claims to be on another device."""
    mounted = os.stat(f"{store.root}/home/topic").st_ino
    below = os.stat(f"{store.root}/home/topic/0.7").st_ino
    fstat = os.fstat

    def elsewhere(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if found.st_ino not in (mounted, below):
            return found
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))

    monkeypatch.setattr(os, "fstat", elsewhere)
    for act in (LOOKS["list"], LOOKS["read"], CHANGES["create"], CHANGES["delete"]):
        with pytest.raises(StratalogError, match="another volume"):
            act(store, StoredObject(NAME, 4, 0, ""))
    [found] = store.list("")
    assert (found.name, found.special) == ("home/topic", "a mount point")
    assert store.names("home") == {"home/topic"}


class TestStrangers:
    """Each listing skips foreign files in a folder of a log."""

    folder = f"{'a' * 32}/t-{'b' * 32}/0.7"

    def test_too_many_of_them_are_refused_with_the_folder_and_soon(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scanning, "MOST_STRANGERS", 10)
        ours = f"{self.folder}/{0:020d}.{1:010d}.parquet"
        store.create(ours, b"data")
        for number in range(10):
            Path(store.root, self.folder, f"stranger-{number}").touch()
        assert len(store.list(self.folder)) == 11
        Path(store.root, self.folder, "one-too-many").touch()
        for look in (store.list, store.names, store.walk):
            with pytest.raises(CorruptionError, match=rf"{self.folder}' holds more than 10 foreign files"):
                look(self.folder)
        assert store.read(ours) == b"data"
        assert len(store.list("")) == 13, "the root as a whole may hold more"

    def test_our_own_files_are_not_counted(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scanning, "MOST_STRANGERS", 1)
        names = ["0" * 19 + f"{n}.{1:010d}.{kind}" for n in range(3) for kind in ("parquet", "hw")]
        names += [f"{1:010d}.epoch", f"{1:020d}.local", f"{1:010d}.claim", f"{1:020d}-{1:010d}.checkpoint"]
        for name in names:
            store.create(f"{self.folder}/{name}", b"")
        assert len(store.list(self.folder)) == len(names)

    @pytest.mark.parametrize("log", [folder, f"{'a' * 32}/__cluster_metadata"])
    def test_more_files_than_a_log_ever_has_are_refused_with_the_remedy(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, log: str
    ) -> None:
        """Foreign files with names of the log: a million of them would fill a driver's memory."""
        monkeypatch.setattr(scanning, "MOST_NAMES", 5)
        for number in range(5):
            store.create(f"{log}/{number:020d}.{1:010d}.parquet", b"")
        assert len(store.list(log)) == 5
        store.create(f"{log}/{5:020d}.{1:010d}.parquet", b"")
        for look in (store.list, store.names, store.walk):
            with pytest.raises(
                CorruptionError, match=rf"{log}' holds more than .* files, which is too many for a log"
            ):
                look(log)
        assert store.read(f"{log}/{0:020d}.{1:010d}.parquet") == b""
        assert len(store.list(log.rpartition("/")[0])) == 6, "above it there may be many logs"

    def test_folders_without_end_are_refused(self, store: LocalStore) -> None:
        Path(store.root, "/".join("d" * 100 for _ in range(scanning.DEEPEST + 2))).mkdir(parents=True)
        with pytest.raises(CorruptionError, match="too many nested folders"):
            store.list("")
        assert store.names("home") == {NAME}
