"""What every store promises (``partitions.store.protocol``), held on memory, a file system and S3."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partitions.clock import ManualClock, SystemClock
from partitions.errors import (
    BrokerUnreachableError,
    InvalidCallError,
    LogDirError,
    SourceChangedError,
    UnsupportedStoreError,
)
from partitions.store import Store, StoredObject, StoreOptions, open_store
from partitions.store.local import LocalStore
from partitions.store.memory import MemoryStore
from partitions.store.s3 import S3Store
from tests.s3_server import S3Endpoint

PART_BYTES = 5 * 1024 * 1024
"""The smallest part that S3 takes."""

SIZES = [0, 1, PART_BYTES + 1]

S3 = pytest.mark.s3
KINDS = [
    "memory",
    "file",
    pytest.param("s3", marks=S3),
    pytest.param("s3-multipart", marks=S3),
]
PAIRS = [
    pytest.param(a, b, marks=S3 if "s3" in (a, b) else ())
    for a, b in itertools.product(["memory", "file", "s3"], repeat=2)
]

_fresh = itertools.count()

OpenKind = Callable[[str], Store]


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, tmp_path: Path) -> OpenKind:
    """Opens a store of a kind, empty and of its own at each call."""

    def opened(kind: str) -> Store:
        number = next(_fresh)
        if kind == "memory":
            return open_store(f"memory://contract-{number}")
        if kind == "file":
            root = tmp_path / f"root-{number}"
            root.mkdir()
            return open_store(root.as_uri())
        endpoint: S3Endpoint = request.getfixturevalue("s3_endpoint")
        exclusive = True if kind == "s3-multipart" else None
        options = StoreOptions(endpoint.url, endpoint.region, part_bytes=PART_BYTES, exclusive_multipart=exclusive)
        return open_store(f"s3://{endpoint.bucket}/contract-{number}", options)

    return opened


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, open_kind: OpenKind) -> Store:
    return open_kind(request.param)


def listed(store: Store, name: str) -> StoredObject:
    """The one object of that name, as a listing sees it."""
    [found] = [each for each in store.list("") if each.name == name]
    return found


def names(store: Store, prefix: str = "") -> list[str]:
    return [each.name for each in store.list(prefix)]


def some_bytes(size: int, salt: int = 0) -> bytes:
    """Bytes without a pattern, so that a piece out of place shows; the same for the same arguments."""
    return random.Random(salt).randbytes(size)


class TestExclusiveCreate:
    def test_of_many_at_once_exactly_one_creates(self, store: Store) -> None:
        barrier = threading.Barrier(16)

        def race(number: int) -> bool:
            barrier.wait()
            return store.create("folder/name", b"%d" % number)

        with ThreadPoolExecutor(16) as pool:
            outcomes = list(pool.map(race, range(16)))
        assert outcomes.count(True) == 1
        assert store.read("folder/name") == b"%d" % outcomes.index(True)

    def test_a_taken_name_keeps_its_bytes_and_version(self, store: Store) -> None:
        assert store.create("name", b"first")
        before = listed(store, "name")
        assert store.create("name", b"second") is False
        assert listed(store, "name") == before
        assert store.read("name") == b"first"

    def test_a_deleted_name_is_free_again_for_another_object(self, store: Store) -> None:
        assert store.create("name", b"first")
        before = listed(store, "name")
        store.delete(["name"])
        assert store.create("name", b"other")
        after = listed(store, "name")
        assert (before.size_bytes, after.size_bytes) == (5, 5)
        assert before.version != after.version

    @pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", ".staging/a", "a\0b"])
    def test_a_name_stays_below_the_root(self, store: Store, name: str) -> None:
        with pytest.raises(InvalidCallError):
            store.create(name, b"")
        with pytest.raises(InvalidCallError):
            store.delete([name])


class TestStaging:
    @pytest.mark.parametrize("size", SIZES)
    def test_staged_bytes_are_invisible_until_commit(self, store: Store, size: int) -> None:
        data = some_bytes(size)
        staged = store.stage_writer("folder/name")
        staged.file.write(data[: size // 2])
        staged.file.write(data[size // 2 :])
        assert names(store) == []
        assert staged.commit() is True
        assert staged.size_bytes == size
        assert names(store) == ["folder/name"]
        assert store.read("folder/name") == data

    @pytest.mark.parametrize("size", SIZES)
    def test_commit_on_a_taken_name_changes_nothing(self, store: Store, size: int) -> None:
        staged = store.stage_writer("name")
        staged.file.write(some_bytes(size))
        assert store.create("name", b"faster")
        assert staged.commit() is False
        assert store.read("name") == b"faster"
        assert names(store) == ["name"]

    @pytest.mark.parametrize("size", SIZES)
    def test_abort_leaves_nothing(self, store: Store, size: int) -> None:
        staged = store.stage_writer("name")
        staged.file.write(some_bytes(size))
        staged.abort()
        staged.abort()
        assert names(store) == []
        assert leftovers(store) == 0
        with pytest.raises(InvalidCallError):
            staged.commit()

    def test_abort_after_commit_is_harmless(self, store: Store) -> None:
        staged = store.stage_writer("name")
        staged.file.write(b"data")
        assert staged.commit()
        staged.abort()
        assert store.read("name") == b"data"
        assert leftovers(store) == 0

    def test_the_caller_may_close_the_file(self, store: Store) -> None:
        staged = store.stage_writer("name.parquet")
        with staged.file as file, pa.PythonFile(file, mode="w") as sink:
            pq.write_table(pa.table({"x": [1, 2, 3]}), sink)
        assert staged.commit()
        assert pq.read_table(pa.BufferReader(store.read("name.parquet"))).to_pydict() == {"x": [1, 2, 3]}


def leftovers(store: Store) -> int:
    """How many staged things are left, whatever their age."""
    if isinstance(store, S3Store):
        _, staged = store._objects.list(f"{store.prefix}/.staging/")
        return len(list(store._objects.uploads(store.prefix + "/"))) + len(staged)
    if isinstance(store, LocalStore):
        staging = Path(store.root, ".staging")
        return len(list(staging.iterdir())) if staging.exists() else 0
    return 0


class TestCopy:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
    def test_copies_the_bytes_between_all_kinds(
        self, open_kind: OpenKind, source_kind: str, target_kind: str, size: int
    ) -> None:
        source, target = open_kind(source_kind), open_kind(target_kind)
        assert source.create("here", some_bytes(size))
        staged = target.stage_copy(source, listed(source, "here"), "folder/there")
        assert staged.size_bytes == size
        assert names(target) == []
        assert staged.commit()
        assert target.read("folder/there") == some_bytes(size)
        assert leftovers(target) == 0

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
    def test_refuses_an_object_that_is_gone(
        self, open_kind: OpenKind, source_kind: str, target_kind: str, size: int
    ) -> None:
        source, target = open_kind(source_kind), open_kind(target_kind)
        assert source.create("here", some_bytes(size))
        before = listed(source, "here")
        source.delete(["here"])
        with pytest.raises(SourceChangedError):
            target.stage_copy(source, before, "there")
        assert leftovers(target) == 0

    @pytest.mark.parametrize("size", SIZES[1:])
    @pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
    def test_refuses_another_object_of_the_same_name_and_size(
        self, open_kind: OpenKind, source_kind: str, target_kind: str, size: int
    ) -> None:
        source, target = open_kind(source_kind), open_kind(target_kind)
        assert source.create("here", some_bytes(size))
        before = listed(source, "here")
        source.delete(["here"])
        assert source.create("here", some_bytes(size, salt=1))
        assert listed(source, "here").size_bytes == before.size_bytes
        with pytest.raises(SourceChangedError):
            target.stage_copy(source, before, "there")
        assert names(target) == []

    def test_a_copy_to_a_taken_name_changes_nothing(self, store: Store) -> None:
        assert store.create("here", b"source")
        staged = store.stage_copy(store, listed(store, "here"), "there")
        assert store.create("there", b"faster")
        assert staged.commit() is False
        assert store.read("there") == b"faster"


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
    def test_is_the_object_as_a_listing_has_it(self, store: Store) -> None:
        assert store.create("folder/name", b"12345")
        found, seen = store.stat("folder/name"), listed(store, "folder/name")
        assert (found.name, found.size_bytes, found.version) == ("folder/name", 5, seen.version)
        assert abs(found.modified_ms - seen.modified_ms) < 1000

    def test_says_the_same_until_the_object_is_another(self, store: Store) -> None:
        assert store.create("name", b"first")
        before = store.stat("name")
        assert not store.create("name", b"later")
        assert (store.stat("name"), store.stat("name").born) == (before, before.born)
        store.delete(["name"])
        assert store.create("name", b"other")
        assert store.stat("name").version != before.version

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        assert store.create("folder/name", b"")
        for name in ["name", "folder", "folder/name2"]:
            with pytest.raises(FileNotFoundError):
                store.stat(name)

    def test_is_one_request_and_moves_no_bytes(self, store: Store) -> None:
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
        """What ``cp -a`` and ``rsync -a`` keep, and the inode that a file system uses again, tell nothing."""
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
        """A backup made of hard links, a ``chmod -R``: nothing of it touches what is stored."""
        store = LocalStore(str(tmp_path))
        assert store.create("name", b"12345")
        before = store.stat("name")
        (tmp_path / "name").chmod(0o600)
        (tmp_path / "link").hardlink_to(tmp_path / "name")
        assert (store.stat("name"), store.stat("name").born) == (before, before.born)


class TestList:
    def test_is_sorted_and_of_the_folder_only(self, store: Store) -> None:
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

    def test_many_are_listed_and_deleted_in_bulk(self, store: Store) -> None:
        expected = [f"folder/{number:05d}" for number in range(1500)]
        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(lambda name: store.create(name, b""), expected))
        assert names(store) == expected
        before = store.counts.snapshot()
        store.delete([*expected, "folder/never-there"])
        assert names(store) == []
        if isinstance(store, S3Store):
            assert (store.counts - before).deletes == 2

    def test_a_name_that_is_not_there_is_deleted_without_error(self, store: Store) -> None:
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
        later = ManualClock(SystemClock().now_ms() + 3_600_000)
        if not isinstance(store, MemoryStore):
            store._clock = later  # type: ignore[attr-defined]
        there = store.sweep_staging(60_000, dry_run=True)
        assert there == (0 if isinstance(store, MemoryStore) else 1)
        assert store.sweep_staging(60_000, dry_run=True) == there
        assert store.sweep_staging(60_000) == there
        assert store.sweep_staging(60_000) == 0
        staged.abort()


class TestAddressesAndCounts:
    def test_an_object_has_an_address_below_the_stores(self, store: Store) -> None:
        assert store.uri_of("a/b") == f"{store.uri}/a/b"

    def test_counts_are_what_was_asked(self, store: Store) -> None:
        store.create("name", b"12345")
        store.create("name", b"12345")
        store.read("name")
        store.read("name", 1, 3)
        store.list("")
        store.delete(["name"])
        counts = store.counts.snapshot()
        assert (counts.creates, counts.reads, counts.deletes) == (2, 2, 1)
        assert (counts.written_bytes, counts.read_bytes) == (5, 7)
        assert counts.lists >= 1
        assert (store.counts - counts).requests == 0

    def test_counts_are_exact_under_threads(self, store: Store) -> None:
        store.create("name", b"1234")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: store.read("name"), range(200)))
        assert (store.counts.reads, store.counts.read_bytes) == (200, 800)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
    def test_a_pickled_store_opens_its_own_connections(self, open_kind: OpenKind, kind: str) -> None:
        store = open_kind(kind)
        assert store.create("name", b"data")
        copy: Store = pickle.loads(pickle.dumps(store))
        assert copy.counts.requests == 0
        assert (copy.uri, copy.list("")) == (store.uri, store.list(""))
        assert copy.read("name") == b"data"

    def test_memory_stays_in_its_process(self) -> None:
        store = open_store("memory://pickled")
        assert store is open_store("memory://pickled")
        with pytest.raises(TypeError, match="lives in one process"):
            pickle.dumps(store)

    @pytest.mark.parametrize("uri", ["gs://bucket/x", "folder", "file://host/folder", "s3:///x", "memory://", ""])
    def test_an_unknown_scheme_names_what_there_is(self, uri: str) -> None:
        with pytest.raises(UnsupportedStoreError, match=r"file:///.*s3://.*memory://"):
            open_store(uri)


class TestCheck:
    def test_passes_and_leaves_nothing(self, store: Store) -> None:
        store.check()
        assert names(store) == []
        assert leftovers(store) == 0

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        store = open_store(f"file://{tmp_path}/missing")
        with pytest.raises(LogDirError, match="missing"):
            store.check()
        with pytest.raises(BrokerUnreachableError, match="missing"):
            store.list("")
        assert not Path(tmp_path, "missing").exists()

    @S3
    def test_a_missing_bucket(self, s3_endpoint: S3Endpoint) -> None:
        store = open_store("s3://no-such-bucket/x", StoreOptions(s3_endpoint.url, s3_endpoint.region))
        with pytest.raises(LogDirError, match="no-such-bucket"):
            store.check()
        with pytest.raises(BrokerUnreachableError, match="no-such-bucket"):
            store.list("")

    def test_refuses_a_store_without_exclusive_create(self, tmp_path: Path) -> None:
        class ReplacingStore(MemoryStore):
            def create(self, name: str, data: bytes) -> bool:
                self.delete([name])
                return super().create(name, data)

        class ForgetfulStore(LocalStore):
            def create(self, name: str, data: bytes) -> bool:
                return super().create(name, data) or True

        for store in (ReplacingStore(), ForgetfulStore(str(tmp_path))):
            with pytest.raises(UnsupportedStoreError, match="without exclusive create"):
                store.check()


def test_options_hold_no_secret() -> None:
    """Credentials come from the environment: nothing that is pickled or shown may carry one."""
    assert {field.name for field in fields(StoreOptions)} == {
        "endpoint_url",
        "region",
        "profile",
        "timeout_s",
        "retries",
        "part_bytes",
        "exclusive_multipart",
        "bytes_with_name",
    }
