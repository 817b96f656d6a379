"""The kernel's reports about a folder's names equal the result of a scan, without a cost for other names."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from stratalog.partitions.store import local_behind, local_watch
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.local_watch import Watches
from tests.unit.together import together

LOG = f"{'d' * 32}/topic-{'t' * 32}/0.1"
MARK = f"{10:020}.0000000001.parquet"


def name_of(number: int) -> str:
    return f"{number:020}.0000000001.parquet"


@pytest.fixture(autouse=True)
def watches(monkeypatch: pytest.MonkeyPatch) -> Watches:
    """Watches of the test alone, on any file system."""
    made = Watches()
    monkeypatch.setattr(local_behind, "WATCHES", made)
    monkeypatch.setattr(local_behind, "stamps_count", lambda device: True)
    if local_watch._functions() is None:
        pytest.skip("this system has no inotify")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / LOG).mkdir(parents=True)
    return tmp_path / LOG


class Scans:
    """The names that scans of a folder have returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = self.scans = 0
        scandir = os.scandir

        def counted(folder: int) -> os._ScandirIterator[str]:
            self.scans += 1
            self.names += len(os.listdir(folder))
            return scandir(folder)

        monkeypatch.setattr(local_behind.os, "scandir", counted)


def behind(store: LocalStore, after: str = MARK) -> list[str]:
    return [stored.name.rpartition("/")[2] for stored in store.list(LOG, after)]


@pytest.mark.parametrize("waiting", [10, 10_000])
def test_names_that_wait_for_their_deletion_are_scanned_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    for number in range(waiting):
        (folder / f"{0:020}.{number:010}.parquet").touch()
    store = LocalStore(str(tmp_path))
    scans = Scans(monkeypatch)
    assert behind(store) == []
    assert (scans.scans, scans.names) == (1, waiting)
    for number in range(11, 111):
        before = store.counts.snapshot()
        assert store.create(f"{LOG}/{name_of(number)}", b"an append")
        assert behind(store, name_of(number - 1)) == [name_of(number)]
        assert (store.counts - before).lists == 1
    assert (scans.scans, scans.names) == (1, waiting)


@pytest.mark.parametrize("seed", range(20))
def test_a_watched_folder_shows_what_a_scan_of_it_shows(tmp_path: Path, folder: Path, seed: int) -> None:
    rng, store = random.Random(seed), LocalStore(str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    for _ in range(200):
        name = name_of(rng.randrange(20))
        match rng.randrange(6):
            case 0:
                store.create(f"{LOG}/{name}", b"")
            case 1:
                (folder / name).write_bytes(b"by another process")
            case 2:
                elsewhere.write_bytes(b"")
                elsewhere.replace(folder / name)
            case 3:
                (folder / name).unlink(missing_ok=True)
            case 4 if (folder / name).exists():
                (folder / name).replace(folder / name_of(rng.randrange(20)))
            case _:
                after = name_of(rng.randrange(20))
                assert behind(store, after) == sorted(one for one in os.listdir(folder) if one > after)


def gone(folder: Path) -> None:
    """The folder is deleted and recreated."""
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.mkdir()


def moved(folder: Path) -> None:
    """Another folder takes its place, with a file that was never created there."""
    folder.rename(folder.with_name("0.2"))
    folder.mkdir()
    (folder / name_of(12)).touch()


def overflown(folder: Path) -> None:
    """There are more changes than the kernel keeps."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    file, other = folder / name_of(1), folder / name_of(2)
    file.touch()
    for _ in range(most // 4 + 1):
        file.rename(other)
        other.rename(file)


def renamed_root(folder: Path) -> None:
    """A folder above it is replaced."""
    above = folder.parent.parent
    above.rename(above.with_name("older"))
    folder.mkdir(parents=True)


@pytest.mark.parametrize("change", [gone, moved, overflown, renamed_root])
def test_a_folder_that_the_kernel_no_longer_reports_is_scanned_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    store = LocalStore(str(tmp_path))
    (folder / name_of(11)).touch()
    assert behind(store) == [name_of(11)]
    change(folder)
    scans = Scans(monkeypatch)
    for number in (0, 13):
        (folder / name_of(number)).touch()
        assert behind(store) == sorted(one for one in os.listdir(folder) if one > MARK)
    assert scans.scans > 0


def test_the_creator_of_a_name_sees_each_name_that_was_created_before(tmp_path: Path, folder: Path) -> None:
    """Two writers, each with its own store and watches: at least one sees the other's name."""
    stores = [LocalStore(str(tmp_path)) for _ in range(2)]
    both = threading.Barrier(2, timeout=60)
    rounds, missed = 300, list[int]()
    seen: list[list[bool]] = [[], []]

    def write(who: int) -> None:
        for number in range(rounds):
            own, other = (name_of(100 + 2 * number + one) for one in (who, 1 - who))
            both.wait()
            stores[who].create(f"{LOG}/{own}", b"")
            seen[who].append(other in behind(stores[who]))

    together(partial(write, 0), partial(write, 1))
    missed = [number for number, pair in enumerate(zip(*seen, strict=True)) if not any(pair)]
    assert len(seen[0]) == rounds
    assert not missed


def _in_child(root: str, found: object) -> None:
    found.put(behind(LocalStore(root)))  # type: ignore[attr-defined]  # a queue of the context


def test_a_forked_child_takes_no_reports_from_its_parent(tmp_path: Path, folder: Path) -> None:
    store, context = LocalStore(str(tmp_path)), get_context("fork")
    os.register_at_fork(after_in_child=local_behind.WATCHES.forked)
    assert behind(store) == []
    (folder / name_of(11)).touch()
    found = context.Queue()
    child = context.Process(target=_in_child, args=(str(tmp_path), found))
    child.start()
    assert found.get(timeout=60) == [name_of(11)]
    child.join()
    assert behind(store) == [name_of(11)]


def test_a_process_watches_a_limited_number_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_watch, "MOST_FOLDERS", 2)
    store = LocalStore(str(tmp_path))
    logs = [f"{LOG[:-3]}{number}.1" for number in range(4)]
    for _ in range(3):
        for log in logs:
            store.create(f"{log}/{name_of(11)}", b"")
            assert len(store.list(log, MARK)) == 1


def test_without_watches_a_folder_is_scanned_twice(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are none on other file systems, and if the kernel has no watch left."""
    store = LocalStore(str(tmp_path))
    for attribute in ("stamps_count", "WATCHES"):
        with monkeypatch.context() as patches:
            if attribute == "stamps_count":
                patches.setattr(local_behind, "stamps_count", lambda device: False)
            else:
                patches.setattr(local_watch, "_functions", lambda: None)
            scans = Scans(patches)
            assert behind(store) == []
            assert scans.scans == 2
