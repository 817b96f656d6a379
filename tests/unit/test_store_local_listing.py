"""A listing that continues an earlier one equals a fresh one, and stats new files only."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import CorruptionError, SourceChangedError
from stratalog.partitions.store import StoredObject, local_listing, local_scan
from stratalog.partitions.store import local as local_module
from stratalog.partitions.store.local import LocalStore

LOG = f"{'d' * 32}/topic-{'t' * 32}/0.1"
"""The folder of a log."""
NAMES = [f"{number:020}.0000000001.parquet" for number in range(6)]
REGISTERS = ["0000000002.epoch", f"{3:020}.local"]


class Counted:
    """The calls that stat a file, and the scans of a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.scans = 0
        seen_as, scandir = local_listing.seen_as, os.scandir

        def counted_seen(name: str, now: os.stat_result) -> object:
            self.asked += 1
            return seen_as(name, now)

        def counted_scan(path: int) -> object:
            self.scans += 1
            return scandir(path)

        monkeypatch.setattr(local_listing, "seen_as", counted_seen)
        monkeypatch.setattr(local_listing.os, "scandir", counted_scan)

    def taken(self) -> tuple[int, int]:
        """The stats and scans since the last call."""
        found, self.asked, self.scans = (self.asked, self.scans), 0, 0
        return found


@dataclass
class LaterClock:
    """A clock that is ahead of the kernel's, so that every change seems old."""

    ahead_ms: int = 10_000

    def now_ms(self) -> int:
        return local_module.SystemClock().now_ms() + self.ahead_ms


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path), ManualClock())


@pytest.fixture
def stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder timestamps are used here, and are old enough."""
    monkeypatch.setattr(local_listing, "stamps_count", lambda device: True)
    monkeypatch.setattr(local_module, "_CLOCK", LaterClock())


@pytest.fixture
def no_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_listing, "stamps_count", lambda device: False)


def listed(store: LocalStore, known: Sequence[StoredObject] = ()) -> Sequence[StoredObject]:
    return store.list(LOG, known=known)


def fill(store: LocalStore, names: Sequence[str] = NAMES) -> None:
    for name in names:
        assert store.create(f"{LOG}/{name}", name.encode())


@pytest.mark.usefixtures("no_stamps")
@pytest.mark.parametrize("files", [10, 100, 1000])
@pytest.mark.slow
def test_a_name_is_asked_about_once(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """For any number of files there are two scans of names, and one stat for the new one."""
    fill(store, NAMES[:1])
    for number in range(1, files):
        (tmp_path / LOG / f"{number:020}.0000000001.parquet").touch()
    counted = Counted(monkeypatch)
    known = listed(store)
    assert counted.taken() == (files, 2)
    known = listed(store, known)
    assert counted.taken() == (0, 2)
    store.create(f"{LOG}/{files:020}.0000000001.parquet", b"new")
    assert [*listed(store, known)] == [*store.list(LOG)]
    assert counted.taken()[0] == 1


@pytest.mark.usefixtures("stamps")
def test_a_folder_that_nobody_has_changed_is_not_scanned(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    known = listed(store)
    counted = Counted(monkeypatch)
    before = store.counts.snapshot()
    assert listed(store, known) is known
    assert counted.taken() == (0, 0)
    assert (store.counts - before).requests == 1


@pytest.mark.usefixtures("stamps")
def test_a_scan_of_a_settled_folder_is_a_snapshot(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    counted = Counted(monkeypatch)
    listed(store)
    assert counted.taken() == (len(NAMES), 1)


def test_changes_within_a_tick_of_the_kernel_are_seen(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within a tick have the same timestamp: an unsettled timestamp never replaces a scan."""
    monkeypatch.setattr(local_listing, "stamps_count", lambda device: True)
    fill(store)
    now_ns = local_module.SystemClock().now_ms() * 1_000_000
    monkeypatch.setattr(local_listing, "_stamp", lambda descriptor: (1, 2, now_ns, now_ns))
    known = listed(store)
    store.delete([f"{LOG}/{NAMES[0]}"])
    store.create(f"{LOG}/{99:020}.0000000001.parquet", b"new")
    assert [*listed(store, known)] == [*store.list(LOG)]


@pytest.mark.usefixtures("stamps")
def test_a_change_during_the_scan_leaves_no_stamp(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timestamp has changed by the end of the scan because of a concurrent change: another scan has
    to agree.
    """
    fill(store)
    stamp, ticks = local_listing._stamp, itertools.count()
    monkeypatch.setattr(local_listing, "_stamp", lambda descriptor: (*stamp(descriptor)[:3], next(ticks)))
    counted = Counted(monkeypatch)
    known = listed(store)
    assert counted.taken() == (len(NAMES), 2)
    listed(store, known)
    assert counted.taken() == (0, 2)


def test_stamps_count_where_only_this_kernel_changes_files() -> None:
    assert not local_listing.stamps_count(os.stat("/proc").st_dev)
    assert not local_listing.stamps_count(2**20 - 1), "no file system at all"


@pytest.mark.usefixtures("no_stamps")
def test_a_file_that_another_has_replaced_is_asked_about(store: LocalStore) -> None:
    """The replacement is like that by ``heal``: the name has another inode, even if everything else is
    the same.
    """
    fill(store)
    known = listed(store)
    staged = store.stage_writer(f"{LOG}/{NAMES[2]}")
    staged.file.write(b"healed")
    staged.replace()
    now = listed(store, known)
    assert [*now] == [*store.list(LOG)]
    assert now[2].size_bytes == len(b"healed")


@pytest.mark.usefixtures("stamps")
def test_a_file_that_was_changed_in_its_place_is_detected_when_it_is_opened(
    store: LocalStore, tmp_path: Path
) -> None:
    """The product never does that. From then on no earlier look is used."""
    fill(store)
    known = listed(store)
    path = tmp_path / LOG / NAMES[1]
    path.write_bytes(b"cut")
    os.utime(path, ns=(1, 1))
    assert listed(store, known) is known
    assert store.list(LOG)[1].size_bytes == len(b"cut"), "a new listing shows it"
    with pytest.raises(SourceChangedError):
        store.open(known[1])
    assert [*listed(store, known)] == [*store.list(LOG)]


@pytest.mark.usefixtures("stamps")
def test_after_a_minute_each_file_is_asked_about_again(tmp_path: Path) -> None:
    clock = ManualClock()
    store = LocalStore(str(tmp_path), clock)
    fill(store)
    known = listed(store)
    path = tmp_path / LOG / NAMES[1]
    path.write_bytes(b"cut")
    os.utime(path, ns=(1, 1))
    clock.advance_ms(59_000)
    assert listed(store, known) is known
    clock.advance_ms(1_000)
    assert [*listed(store, known)] == [*store.list(LOG)]


@pytest.mark.usefixtures("stamps")
def test_an_object_that_is_no_file_is_named_each_time(store: LocalStore, tmp_path: Path) -> None:
    fill(store)
    known = listed(store)
    (tmp_path / LOG / f"{7:020}.0000000001.parquet").symlink_to("/etc/passwd")
    now = listed(store, known)
    assert now[-1].special == "a symbolic link"
    assert [*listed(store, now)] == [*store.list(LOG)]


def test_a_folder_inside_the_folder_is_listed_as_before(store: LocalStore, tmp_path: Path) -> None:
    fill(store)
    known = listed(store)
    (tmp_path / LOG / "saved").mkdir()
    (tmp_path / LOG / "saved" / NAMES[0]).touch()
    assert [*listed(store, known)] == [*store.list(LOG)]
    assert any("saved" in stored.name for stored in store.list(LOG))


def test_a_folder_that_is_gone_is_empty_and_a_folder_with_too_many_strangers_is_none(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*listed(store)] == []
    fill(store, NAMES[:1])
    known = listed(store)
    monkeypatch.setattr(local_scan, "MOST_STRANGERS", 2)
    for number in range(3):
        (tmp_path / LOG / f"stranger-{number}").touch()
    with pytest.raises(CorruptionError, match="foreign files"):
        listed(store, known)


class FolderOfALog(RuleBasedStateMachine):
    """Another process creates, deletes, replaces and recreates files at any time; each look continues the previous
    one."""

    def __init__(self) -> None:
        super().__init__()
        self.root = TemporaryDirectory()
        self.other = LocalStore(self.root.name)
        self.mine = LocalStore(self.root.name)
        self.known: Sequence[StoredObject] = ()
        self.contents = itertools.count()

    def teardown(self) -> None:
        self.root.cleanup()

    @rule(name=st.sampled_from(NAMES + REGISTERS))
    def create(self, name: str) -> None:
        self.other.create(f"{LOG}/{name}", b"x" * next(self.contents))

    @rule(name=st.sampled_from(NAMES + REGISTERS))
    def delete(self, name: str) -> None:
        self.other.delete([f"{LOG}/{name}"])

    @rule(name=st.sampled_from(NAMES))
    def replace(self, name: str) -> None:
        staged = self.other.stage_writer(f"{LOG}/{name}")
        staged.file.write(b"x" * next(self.contents))
        staged.replace()

    @rule(name=st.sampled_from(NAMES))
    def touch_a_stranger(self, name: str) -> None:
        self.other.create(f"{LOG}/copy of {name}", b"")

    @rule()
    def look(self) -> None:
        """The names equal those of a fresh look. Each object is the same, too, unless a name of records was freed
        and recreated with the same inode: then opening the file reveals this, and the next look has the new
        object.
        """
        before, self.known = self.known, self.mine.list(LOG, known=self.known)
        fresh = self.other.list(LOG)
        assert [stored.name for stored in self.known] == [stored.name for stored in fresh]
        stale = [mine for mine, now in zip(self.known, fresh, strict=True) if mine != now]
        for stored in stale:
            assert stored in before
            assert stored.name.endswith(".parquet")
            assert stored.version.split(".")[0] == fresh[self.known.index(stored)].version.split(".")[0]
            with pytest.raises(SourceChangedError):
                self.mine.open(stored)
        if stale:
            self.known = self.mine.list(LOG, known=self.known)
            assert [*self.known] == [*fresh]

    @precondition(lambda self: self.known)
    @rule()
    def look_twice(self) -> None:
        self.look()
        self.look()

    @invariant()
    def an_answer_never_changes(self) -> None:
        assert [*self.known] == sorted(self.known, key=lambda stored: stored.name)


TestFolderOfALog = FolderOfALog.TestCase
TestFolderOfALog.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
