"""The contract of every store for writes: one of many creators of a name succeeds, and a name has all its bytes or
does not exist (``stratalog.partitions.store.protocol``).
"""

from __future__ import annotations

import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.errors import InvalidCallError, SourceChangedError
from stratalog.partitions.store import Store
from tests.unit.store_kinds import PAIRS, SIZES, OpenKind, leftovers, listed, names, some_bytes


class TestExclusiveCreate:
    def test_exactly_one_of_many_concurrent_creates_succeeds(self, store: Store) -> None:
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

    def test_bytes_that_were_dropped_replace_nothing(self, store: Store) -> None:
        store.create("name", b"data")
        staged = store.stage_writer("name")
        staged.file.write(b"other")
        staged.abort()
        with pytest.raises(InvalidCallError):
            staged.replace()
        assert store.read("name") == b"data"

    @pytest.mark.parametrize("taken", [True, False])
    @pytest.mark.parametrize("size", SIZES)
    def test_replace_takes_the_name_whatever_has_it(self, store: Store, size: int, taken: bool) -> None:
        data = some_bytes(size)
        if taken:
            assert store.create("folder/name", b"damaged")
        staged = store.stage_writer("folder/name")
        staged.file.write(data)
        staged.replace()
        staged.abort()
        assert names(store) == ["folder/name"]
        assert store.read("folder/name") == data
        assert leftovers(store) == 0
        with pytest.raises(InvalidCallError):
            staged.commit()

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


class TestCopy:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
    def test_bytes_are_copied_between_all_kinds_of_stores(
        self, open_kind: OpenKind, source_kind: str, target_kind: str, size: int
    ) -> None:
        source, target = open_kind(source_kind), open_kind(target_kind)
        assert source.create("here", some_bytes(size))
        staged = target.stage_copy(source, listed(source, "here"), "folder/there")
        assert staged.size_bytes == size
        assert staged.crc32 == zlib.crc32(some_bytes(size)), "the checksum is known before anything has the name"
        assert names(target) == []
        assert staged.commit()
        assert target.read("folder/there") == some_bytes(size)
        assert leftovers(target) == 0

    @pytest.mark.parametrize(
        ("size", "replaced"), [*((size, False) for size in SIZES), *((size, True) for size in SIZES[1:])]
    )
    @pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
    def test_a_copy_refuses_an_object_that_is_gone_or_another_of_the_same_name_and_size(
        self, open_kind: OpenKind, source_kind: str, target_kind: str, size: int, replaced: bool
    ) -> None:
        source, target = open_kind(source_kind), open_kind(target_kind)
        assert source.create("here", some_bytes(size))
        before = listed(source, "here")
        source.delete(["here"])
        if replaced:
            assert source.create("here", some_bytes(size, salt=1))
            assert listed(source, "here").size_bytes == before.size_bytes
        with pytest.raises(SourceChangedError):
            target.stage_copy(source, before, "there")
        assert names(target) == []
        assert leftovers(target) == 0

    def test_a_copy_to_a_taken_name_changes_nothing(self, store: Store) -> None:
        assert store.create("here", b"source")
        staged = store.stage_copy(store, listed(store, "here"), "there")
        assert store.create("there", b"faster")
        assert staged.commit() is False
        assert store.read("there") == b"faster"
