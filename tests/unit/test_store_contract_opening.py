"""The contract of every store, apart from reads and writes: its address, its counts, pickling, its check
(``stratalog.partitions.store.protocol``).
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest

from stratalog.partitions.errors import BrokerUnreachableError, LogDirError, UnsupportedStoreError
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from tests.s3_server import S3Endpoint
from tests.unit.store_kinds import KINDS, S3, OpenKind, leftovers, names


class TestAddressesAndCounts:
    def test_an_object_has_an_address_below_the_stores(self, store: Store) -> None:
        assert store.uri_of("a/b") == f"{store.uri}/a/b"

    def test_counts_show_the_requests_and_their_bytes(self, store: Store) -> None:
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
        with pytest.raises(TypeError, match="exists in one process"):
            pickle.dumps(store)

    @pytest.mark.parametrize("uri", ["folder", "file://host/folder", "s3:///x", "memory://", ""])
    def test_an_invalid_address_is_refused_with_the_valid_forms(self, uri: str) -> None:
        with pytest.raises(UnsupportedStoreError, match=r"file:///.*s3://.*memory://"):
            open_store(uri)

    @pytest.mark.parametrize(
        ("uri", "instead"),
        [
            ("hdfs://bucket/x", "use a folder, file:///folder, s3://bucket/prefix"),
            ("s3n://bucket/x", "write s3://"),
            ("dbfs:/x", "use s3://bucket/prefix"),
        ],
    )
    def test_a_scheme_of_others_names_what_to_write_instead(self, uri: str, instead: str) -> None:
        with pytest.raises(UnsupportedStoreError, match=f"refused, and not repeated here: .*{instead}"):
            open_store(uri)


class TestCheck:
    def test_a_check_passes_and_leaves_nothing(self, store: Store) -> None:
        store.check()
        assert names(store) == []
        assert leftovers(store) == 0

    def test_a_missing_folder_is_refused_and_not_created(self, tmp_path: Path) -> None:
        store = open_store(f"file://{tmp_path}/missing")
        with pytest.raises(LogDirError, match="missing"):
            store.check()
        with pytest.raises(BrokerUnreachableError, match="missing"):
            store.list("")
        assert not Path(tmp_path, "missing").exists()

    @S3
    def test_a_missing_bucket_is_refused(self, s3_endpoint: S3Endpoint) -> None:
        store = open_store("s3://no-such-bucket/x", StoreOptions(s3_endpoint.url, s3_endpoint.region))
        with pytest.raises(LogDirError, match="no-such-bucket"):
            store.check()
        with pytest.raises(BrokerUnreachableError, match="no-such-bucket"):
            store.list("")

    def test_a_check_refuses_a_store_without_exclusive_create(self, tmp_path: Path) -> None:
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
    """Credentials come from the environment, or from a named provider: pickles and texts must not contain any.
    (``credentials`` is the provider.)"""
    assert {field.name for field in fields(StoreOptions)} == {
        "endpoint_url",
        "region",
        "profile",
        "account",
        "kms_key_id",
        "encryption_scope",
        "plain_http",
        "credentials",
        "timeout_s",
        "retries",
        "part_bytes",
        "exclusive_multipart",
        "driver",
        "file_system",
        "bytes_with_name",
        "resolved",
    }
