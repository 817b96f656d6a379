"""File systems of fsspec that a user brings: correct ones work, and incorrect ones are refused by name."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from multiprocessing import get_context

import pytest

from stratalog.engine.config.storage_tables import StorageTables
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    InvalidCallError,
    OutcomeUnknownError,
    StorageAuthorizationError,
    StorageError,
    UnsupportedStoreError,
)
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import Store, StoreOptions, file_system, file_system_calls, open_store
from stratalog.partitions.store.checking import PART_BYTES, QUICK, StoreCheck
from stratalog.partitions.store.file_system import FileSystemStore, StagedInMemory
from stratalog.partitions.store.file_system_calls import MOST_HUNG, CallsHangError, FileSystem
from stratalog.partitions.store.racing import race_in_threads
from tests.cloud_servers import CloudEndpoint
from tests.s3_server import S3Endpoint
from tests.unit.foreign_file_systems import Hanging, Honest, Losing
from tests.unit.store_kinds import CLOUD, FILE_SYSTEMS, S3

pytest.importorskip("fsspec")
HERE = "tests.unit.foreign_file_systems:"


def opened(function: str, endpoint_url: str | None = "https://nowhere.example.org") -> Store:
    options = StoreOptions(
        endpoint_url, "us-east-1", part_bytes=PART_BYTES, retries=1, driver="fsspec", file_system=HERE + function
    )
    return open_store(f"s3://bucket/{function}", options)


def broken(store: Store) -> dict[str, str]:
    """The violated rules, with the reasons."""
    check = StoreCheck(store, store, race_in_threads, SystemClock(), random_id, QUICK)
    return {each.rule: each.result for each in check.verdicts() if not each.kept}


def test_an_honest_file_system_keeps_the_rules_and_travels_by_its_name() -> None:
    store = opened("honest")
    assert broken(store) == {}
    assert store.create("name", b"0123456789")
    copy: Store = pickle.loads(pickle.dumps(store))
    assert copy.read("name", 2, 5) == b"234"
    assert not copy.create("name", b"later")
    assert [each.name for each in copy.list("")] == ["name"]
    copy.delete(["name"])
    StoreCheck(store, store, race_in_threads, SystemClock(), random_id, QUICK).must_hold()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("overwriting", r'Overwriting\.pipe_file\(mode="create"\) overwrites'),
        ("looking", r'Looking\.pipe_file\(mode="create"\) checks whether a name exists, and then writes'),
        ("deaf", r"Honest sent nothing to the given endpoint_url"),
    ],
)
def test_a_file_system_that_does_not_create_exclusively_is_refused_by_its_name(function: str, says: str) -> None:
    store = opened(function)
    with pytest.raises(UnsupportedStoreError, match=f"{says}.*use another file system, or none"):
        StoreCheck(store, store, race_in_threads, SystemClock(), random_id, QUICK).must_hold()


@pytest.mark.parametrize("function", ["caching", "wrapping"])
def test_a_file_system_that_caches_listings_is_refused_by_its_name(function: str) -> None:
    store = opened(function)
    for call in (store.check, lambda: list(store.list("")), lambda: store.create("name", b"")):
        with pytest.raises(
            InvalidCallError,
            match=rf"foreign_file_systems:{function} returned a .*\.Honest that caches.*use_listings_cache=False",
        ):
            call()


@pytest.mark.parametrize("name", ["one answer", "all answers"])
def test_a_lost_answer_is_neither_created_nor_taken_by_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store retries once: the second attempt finds the name taken by the first one, or loses its
    answer too.
    """
    store = opened("losing")
    monkeypatch.setattr(Losing, "to_lose", {"one answer": 1, "all answers": 2}[name])
    if name == "one answer":
        assert store.create(name, b"data") is False
    else:
        with pytest.raises(OutcomeUnknownError, match="read before you retry"):
            store.create(name, b"data")
    assert store.read(name) == b"data"


def test_an_object_that_cannot_be_deleted_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store, names = opened("honest"), [f"{number:03}" for number in range(100)]
    for name in names:
        store.create(name, b"")
    delete = Honest.rm_file

    def held(fs: Honest, path: str) -> None:
        if path.endswith("/000"):
            raise PermissionError(path)
        delete(fs, path)

    with monkeypatch.context() as patch:
        patch.setattr(Honest, "rm_file", held)
        with pytest.raises(StorageAuthorizationError, match=r"cannot delete honest/000 \("):
            store.delete(names)
    assert store.names("") == {"000"}
    store.delete(["000"])


@pytest.mark.parametrize("missing", [True, False])
def test_a_missing_bucket_is_unreachable_and_a_missing_folder_is_empty(
    missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may raise FileNotFoundError for both."""
    store = opened("honest")

    def raises(fs: Honest, path: str, **_: object) -> dict[str, object]:
        if path == "bucket" and not missing:
            return {"name": path, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    monkeypatch.setattr(Honest, "find", raises)
    monkeypatch.setattr(Honest, "info", raises)
    if not missing:
        assert [*store.list(""), *store.staged()] == []
        return
    for call in (store.list, store.walk, store.names):
        with pytest.raises(
            BrokerUnreachableError, match=r"cannot list s3://bucket/honest/folder: 404 NoSuchBucket"
        ):
            call("folder")
    with pytest.raises(StorageError, match="404 NoSuchBucket"):
        store.staged()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_file_system_of_its_own() -> None:
    store = opened("honest")
    assert isinstance(store, FileSystemStore)
    store.create("forked", b"data")
    ours, theirs = get_context("fork").Pipe()

    def child() -> None:
        theirs.send((store.read("forked"), id(store._requests.client().fs)))

    process = get_context("fork").Process(target=child)
    process.start()
    assert ours.poll(30)
    data, file_system_of_child = ours.recv()
    process.join(30)
    assert data == store.read("forked") == b"data"
    assert file_system_of_child != id(store._requests.client().fs)


class TestPartsThatWaitInMemory:
    def staged(self, most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> StagedInMemory:
        monkeypatch.setattr(file_system, "LARGEST_BYTES", most_bytes)
        store = opened("honest")
        assert isinstance(store, FileSystemStore)
        return store._in_parts("parts")

    def test_a_part_that_is_repeated_replaces_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        staged = self.staged(8, monkeypatch)
        for index, data in ((1, b"5678"), (0, b"once"), (0, b"1234")):
            staged.put_part(index, data, zlib.crc32(data))
        assert staged.size_bytes == 8
        assert staged.crc32 == zlib.crc32(b"12345678")

    def test_a_part_for_which_there_is_no_room_is_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        staged = self.staged(8, monkeypatch)
        staged.put_part(0, b"1234", 0)
        for index, data in ((1, b"56789"), (0, b"123456789")):
            with pytest.raises(StorageError, match="of at most 8 bytes"):
                staged.put_part(index, data, 0)
            assert (staged.size_bytes, staged.crc32) == (4, zlib.crc32(b"1234"))

    def test_a_checksum_copies_no_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        size_bytes = 8 * 1024 * 1024
        staged = self.staged(2 * size_bytes, monkeypatch)
        for index in range(2):
            staged.put_part(index, bytes(size_bytes), 0)
        tracemalloc.start()
        try:
            assert staged.crc32 == zlib.crc32(bytes(2 * size_bytes))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert staged.crc32
            assert tracemalloc.get_traced_memory()[1] - before < 100_000
        finally:
            tracemalloc.stop()


class TestCallsThatHang:
    @pytest.fixture
    def hanging(self) -> Iterator[Hanging]:
        fs = Hanging(skip_instance_cache=True, use_listings_cache=False)
        yield fs
        fs.end.set()

    def hang(self, called: FileSystem, calls: int) -> None:
        for _ in range(calls):
            with pytest.raises(TimeoutError):
                called.call("cat_file", 0.02, "bucket/name")

    def test_each_takes_only_its_own_thread(self, hanging: Hanging) -> None:
        called = FileSystem(hanging)
        self.hang(called, MOST_HUNG - 1)
        assert hanging.began == MOST_HUNG - 1
        called.call("pipe_file", 5, "bucket/name", b"", mode="overwrite")
        assert called.call("exists", 5, "bucket/name")
        other = FileSystem(Honest(skip_instance_cache=True))
        assert not other.call("exists", 5, "bucket/no name")

    def test_when_too_many_hang_the_next_is_not_made_until_one_ends(
        self, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_system_calls, "MOST_HUNG", 3)
        called = FileSystem(hanging)
        self.hang(called, 3)
        with pytest.raises(CallsHangError, match=r"3 calls of .*\.Hanging still run after their deadline"):
            called.call("exists", 5, "bucket/name")
        store = opened("honest")
        assert isinstance(store, FileSystemStore)
        monkeypatch.setattr(store._requests, "client", lambda: called)
        with pytest.raises(StorageError, match="3 calls of"):  # it is certain that nothing was created
            store.create("name", b"")
        assert hanging.began == 3
        hanging.end.set()
        called._threads.shutdown()
        assert called._hung == 0

    def test_an_error_of_the_call_itself_counts_as_no_hung_call(self, hanging: Hanging) -> None:
        called = FileSystem(hanging)
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                called.call("info", 5, "bucket/missing")
        assert called._hung == 0


@pytest.mark.nightly
@S3
def test_s3fs_as_it_comes_repeats_its_own_request_and_is_refused(s3_endpoint: S3Endpoint) -> None:
    pytest.importorskip("s3fs")
    found = broken(_on(s3_endpoint, "s3fs_as_it_comes"))
    assert list(found) == ["a creation is sent once"]
    assert "s3fs.core.S3FileSystem sent the same create request" in found["a creation is sent once"]


@S3
def test_an_fsspec_file_system_that_overwrites_silently_is_refused(s3_endpoint: S3Endpoint) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(
        UnsupportedStoreError, match=r"FsspecStore\.pipe_file\(mode=\"create\"\) overwrites an existing name"
    ):
        _on(s3_endpoint, "obstore_door").check()


@pytest.mark.parametrize(
    "kind", [pytest.param("s3fs", marks=S3), *(pytest.param(k, marks=CLOUD) for k in ("adlfs", "gcsfs"))]
)
@pytest.mark.slow
def test_the_named_file_systems_keep_every_rule(kind: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip(kind)
    options = StoreOptions(part_bytes=PART_BYTES, driver="fsspec")
    if kind == "s3fs":
        s3: S3Endpoint = request.getfixturevalue("s3_endpoint")
        root, options = (
            f"s3://{s3.bucket}",
            StoreOptions(s3.url, s3.region, part_bytes=PART_BYTES, driver="fsspec"),
        )
    else:
        cloud: CloudEndpoint = request.getfixturevalue(f"{FILE_SYSTEMS[kind]}_endpoint")
        root = cloud.root
    assert broken(open_store(f"{root}/checked-{kind}", options)) == {}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("s3fs_as_it_comes", marks=S3),
        pytest.param("azure", marks=CLOUD),
        pytest.param("gcs", marks=CLOUD),
    ],
)
def test_the_listing_of_a_missing_bucket_is_no_empty_one(kind: str, request: pytest.FixtureRequest) -> None:
    if kind in ("azure", "gcs"):
        cloud: CloudEndpoint = request.getfixturevalue(f"{kind}_endpoint")
        store = open_store(f"{cloud.root}-missing/x", StoreOptions(driver="fsspec"))
        there = open_store(f"{cloud.root}/missing-folder", StoreOptions(driver="fsspec"))
    else:
        pytest.importorskip("s3fs")
        endpoint: S3Endpoint = request.getfixturevalue("s3_endpoint")
        there, store = _on(endpoint, kind), _on(endpoint, kind, bucket="no-such-bucket")
    with pytest.raises(BrokerUnreachableError, match="NoSuchBucket"):
        store.list("folder")
    assert list(there.list("folder")) == []


def _on(endpoint: S3Endpoint, function: str, bucket: str = "") -> Store:
    options = StoreOptions(
        endpoint.url, endpoint.region, part_bytes=PART_BYTES, driver="fsspec", file_system=HERE + function
    )
    return open_store(f"s3://{bucket or endpoint.bucket}/{function}", options)


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3fs"), ("gs", "gcs"), ("az", "azure")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("stratalog.partitions.store.")]:
        if name.rpartition(".")[2] in ("s3_fsspec", "object_gcs", "object_azure"):
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(name.rpartition(".")[0] + "." + name.rpartition(".")[2], raising=False)
    for package in ("s3fs", "gcsfs.core", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)
    options = StoreOptions("https://nowhere.example.org", driver="fsspec", account="a" if scheme == "az" else None)
    with pytest.raises(UnsupportedStoreError, match=rf"not installed .*stratalog\[{extra}\]"):
        open_store(f"{scheme}://bucket/x", options)


class TestTables:
    def test_the_driver_is_that_of_the_kind_or_of_a_root(self) -> None:
        tables = StorageTables({"s3": {"driver": "fsspec"}})
        assert tables.options("s3://b/x").driver == "fsspec"
        assert tables.options("gs://b/x").driver is None
        own = tables.options("gs://b/x", {"driver": "fsspec", "file_system": "ops.lake:file_system"})
        assert own.file_system == "ops.lake:file_system"

    @pytest.mark.parametrize(
        ("table", "says"),
        [
            ({"file_system": "ops.lake:open"}, 'needs driver = "fsspec"'),
            ({"driver": "fsspec", "file_system": "key=secret"}, "names a function"),
            (
                {"driver": "fsspec", "file_system": "ops.lake:open", "credentials": "ops.vault:keys"},
                "credentials has no meaning",
            ),
        ],
    )
    def test_impossible_requests_are_refused(self, table: dict[str, str], says: str) -> None:
        with pytest.raises(InvalidCallError, match=says):
            StorageTables({"s3": table}).options("s3://b/x")

    @pytest.mark.parametrize(
        ("address", "table"),
        [
            ("gs://b/x", {"driver": "fsspec", "kms_key_id": "key"}),
            ("az://b/x", {"driver": "fsspec", "encryption_scope": "scope", "account": "a"}),
            ("s3://b/x", {"driver": "fsspec", "file_system": "ops.lake:open", "kms_key_id": "key"}),
        ],
    )
    def test_an_implausible_encryption_key_is_refused(self, address: str, table: dict[str, str]) -> None:
        with pytest.raises(InvalidCallError, match="set the encryption key on the"):
            StorageTables().options(address, table)
        assert StorageTables().options("s3://b/x", {"driver": "fsspec", "kms_key_id": "key"}).kms_key_id == "key"

    def test_a_file_in_a_bucket_names_no_function(self) -> None:
        tables = StorageTables({}, names_providers=False)
        with pytest.raises(InvalidCallError, match="must not name a function to import"):
            tables.options("s3://b/x", {"driver": "fsspec", "file_system": "ops.lake:open"})
