"""The contract of every store for reads: ranges, the identity of an object, the content of a folder
(``stratalog.partitions.store.protocol``).
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import InvalidCallError, SourceChangedError
from stratalog.partitions.store import Store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.object import ObjectStore
from stratalog.partitions.store.s3 import S3Store
from stratalog.partitions.store.upload_writer import UploadWriter
from tests.unit.store_kinds import PART_BYTES, listed, names


class TestRead:
    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, None, b"0123456789"),
            (3, None, b"3456789"),
            (2, 5, b"234"),
            (0, 100, b"0123456789"),
            (8, 100, b"89"),
            (10, None, b""),
            (50, 60, b""),
            (5, 5, b""),
            (7, 3, b""),
            (-4, None, b"6789"),
            (-100, None, b"0123456789"),
            (-4, 8, b"67"),
            (-4, 2, b""),
        ],
    )
    def test_ranges_are_half_open_and_clipped(
        self, store: Store, start: int, end: int | None, expected: bytes
    ) -> None:
        assert store.create("name", b"0123456789")
        assert store.read("name", start, end) == expected

    @pytest.mark.parametrize(("start", "end"), [(0, None), (0, 5), (-4, None), (3, 3), (-4, 2)])
    def test_an_empty_object_has_empty_ranges(self, store: Store, start: int, end: int | None) -> None:
        assert store.create("name", b"")
        assert store.read("name", start, end) == b""

    @pytest.mark.parametrize(("start", "end"), [(0, None), (0, 5), (-4, None), (3, 3)])
    def test_a_missing_object_is_not_found(self, store: Store, start: int, end: int | None) -> None:
        with pytest.raises(FileNotFoundError):
            store.read("no/such/name", start, end)

    def test_open_is_a_seekable_source_for_parquet(self, store: Store) -> None:
        table = pa.table({"offset": range(10_000), "value": [b"v" * (i % 50) for i in range(10_000)]})
        staged = store.stage_writer("name.parquet")
        pq.write_table(table, staged.file, row_group_size=1000)
        assert staged.commit()
        with store.open(listed(store, "name.parquet")) as reader:
            file = pq.ParquetFile(reader)
            assert file.read_row_group(3, ["offset"]) == table.select(["offset"]).slice(3000, 1000)
            assert file.read() == table

    def test_open_seeks_from_both_ends(self, store: Store) -> None:
        assert store.create("name", b"0123456789")
        with store.open(listed(store, "name")) as reader:
            assert reader.seek(-3, 2) == 7
            assert reader.read() == b"789"
            assert reader.seek(2) == 2
            assert reader.read(3) == b"234"
            assert reader.seek(1, 1) == 6
            assert reader.read(100) == b"6789"
            assert reader.read(1) == b""

    @pytest.mark.parametrize("data", [b"", b"data"])
    def test_open_refuses_an_object_that_is_gone(self, store: Store, data: bytes) -> None:
        assert store.create("name", data)
        before = listed(store, "name")
        store.delete(["name"])
        with pytest.raises(SourceChangedError), store.open(before) as reader:
            reader.read()


class TestStat:
    def test_stat_shows_an_object_as_a_listing_does(self, store: Store) -> None:
        assert store.create("folder/name", b"12345")
        found, seen = store.stat("folder/name"), listed(store, "folder/name")
        assert (found.name, found.size_bytes, found.version) == ("folder/name", 5, seen.version)
        assert abs(found.modified_ms - seen.modified_ms) < 1000

    def test_stat_says_the_same_until_the_object_is_another(self, store: Store) -> None:
        assert store.create("name", b"first")
        before = store.stat("name")
        assert not store.create("name", b"later")
        assert (store.stat("name"), store.stat("name").born) == (before, before.born)
        store.delete(["name"])
        assert store.create("name", b"other")
        assert store.stat("name").version != before.version

    def test_a_missing_name_has_no_stat(self, store: Store) -> None:
        assert store.create("folder/name", b"")
        for name in ["name", "folder", "folder/name2"]:
            with pytest.raises(FileNotFoundError):
                store.stat(name)

    def test_stat_is_one_request_and_moves_no_bytes(self, store: Store) -> None:
        assert store.create("name", b"12345")
        before = store.counts.snapshot()
        store.stat("name")
        asked = store.counts - before
        assert (asked.requests, asked.reads, asked.read_bytes) == (1, 1, 0)

    @pytest.mark.parametrize("name", ["", "/a", "a/../b", ".staging/a"])
    def test_a_name_stays_below_the_root(self, store: Store, name: str) -> None:
        with pytest.raises(InvalidCallError):
            store.stat(name)

    def test_a_faithful_copy_of_a_file_was_born_at_another_time(self, tmp_path: Path) -> None:
        """The attributes that ``cp -a`` and ``rsync -a`` preserve, and a reused inode, prove nothing."""
        store = LocalStore(str(tmp_path))
        assert store.create("name", b"12345")
        before = store.stat("name")
        if not before.born:
            pytest.skip("this file system does not tell when a file was born")
        shutil.copy2(tmp_path / "name", tmp_path / "copy")
        (tmp_path / "name").unlink()
        shutil.copy2(tmp_path / "copy", tmp_path / "name")
        assert store.stat("name").modified_ms == before.modified_ms
        assert store.stat("name").born != before.born

    def test_neither_a_new_owner_nor_a_hard_link_makes_a_file_another(self, tmp_path: Path) -> None:
        """A backup of hard links, or a ``chmod -R``, does not affect stored objects."""
        store = LocalStore(str(tmp_path))
        assert store.create("name", b"12345")
        before = store.stat("name")
        (tmp_path / "name").chmod(0o600)
        (tmp_path / "link").hardlink_to(tmp_path / "name")
        assert (store.stat("name"), store.stat("name").born) == (before, before.born)


class TestList:
    def test_a_listing_is_sorted_and_of_the_folder_only(self, store: Store) -> None:
        for name in ["b/2", "b/10", "a", "b/c/1", "bb/1", "b.x"]:
            assert store.create(name, name.encode())
        assert names(store) == ["a", "b.x", "b/10", "b/2", "b/c/1", "bb/1"]
        assert names(store, "b") == names(store, "b/") == ["b/10", "b/2", "b/c/1"]
        assert names(store, "b/c") == ["b/c/1"]
        assert [each.size_bytes for each in store.list("b")] == [4, 3, 5]
        for prefix in ("", "b", "b/", "b/c", "no/such", "a"):
            assert store.names(prefix) == set(names(store, prefix))

    def test_a_missing_folder_is_empty(self, store: Store) -> None:
        assert names(store, "no/such") == []
        assert store.create("name", b"")
        assert names(store, "name") == []

    @pytest.mark.long("fills several pages of a listing")
    @pytest.mark.slow
    def test_many_are_listed_and_deleted_in_bulk(self, store: Store) -> None:
        expected = [f"folder/{number:05d}" for number in range(1010)]
        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(lambda name: store.create(name, b""), expected))
        assert names(store) == expected
        before = store.counts.snapshot()
        store.delete([*expected, "folder/never-there"])
        assert names(store) == []
        if isinstance(store, S3Store):
            assert (store.counts - before).deletes == 2

    def test_a_name_that_is_missing_is_deleted_without_error(self, store: Store) -> None:
        store.delete(["no/such/name"])
        store.delete([])


class TestWalkAndSweep:
    def test_a_walk_is_a_listing_that_looks_once(self, store: Store) -> None:
        for name in ["b/2", "b/10", "a"]:
            assert store.create(name, name.encode())
        assert store.walk("") == store.list("")
        assert store.walk("b") == store.list("b")
        assert list(store.walk("no/such")) == []
        before = store.counts.snapshot()
        store.walk("")
        assert (store.counts - before).lists == 1

    def test_a_dry_sweep_counts_what_a_sweep_would_remove(self, store: Store) -> None:
        staged = store.stage_writer(f"{'a' * 32}/name")
        staged.file.write(b"x" * 20_000_000)
        if isinstance(staged, UploadWriter):
            staged._wait(0)  # until all parts exist
        later = ManualClock(SystemClock().now_ms() + 3_600_000)
        if not isinstance(store, MemoryStore):
            store._clock = later  # type: ignore[attr-defined]
            store.now_ms = later.now_ms  # type: ignore[method-assign]
        if isinstance(store, ObjectStore) and store.file_system is not None:
            assert store.sweep_staging(60_000) == 0, "what has no name yet is in memory"
            staged.abort()
            return
        there = store.sweep_staging(60_000, dry_run=True)
        # Each part is a staged object of Google's; Azure removes its blocks by itself.
        parts = 20_000_000 // PART_BYTES
        expected = {"memory": 0, "az": 0, "gs": parts}
        assert there == expected.get(store.uri.partition(":")[0], 1)
        assert store.sweep_staging(60_000, dry_run=True) == there
        assert len(store.staged()) == there
        assert store.sweep_staging(60_000) == there
        assert not store.staged()
        assert store.sweep_staging(60_000) == 0
        staged.abort()
