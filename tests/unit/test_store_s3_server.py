"""The store on S3 with a real server: races for a name, copies, forks, sweeps, and secrets."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest

from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import SourceChangedError, StorageError, UnsupportedStoreError
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import StoredObject, StoreOptions, open_store
from stratalog.partitions.store.checking import QUICK, StoreCheck
from stratalog.partitions.store.racing import race_in_threads
from stratalog.partitions.store.s3 import S3Store
from stratalog.partitions.store.s3_connection import client_of
from stratalog.partitions.store.s3_upload import StagedUpload
from tests.s3_server import SECRET_KEY, S3Endpoint

PART_BYTES = 5 * 1024 * 1024


def _read_into(store: S3Store, sender: Connection) -> None:
    sender.send(store.read("name"))


@pytest.mark.s3
class TestRealServer:
    @pytest.fixture
    def options(self, s3_endpoint: S3Endpoint) -> StoreOptions:
        return StoreOptions(s3_endpoint.url, s3_endpoint.region, part_bytes=PART_BYTES)

    @pytest.fixture
    def store(self, s3_endpoint: S3Endpoint, options: StoreOptions, request: pytest.FixtureRequest) -> S3Store:
        return S3Store(f"s3://{s3_endpoint.bucket}/real/{request.node.name}", options)

    def test_exactly_one_of_the_large_objects_that_race_for_a_name_gets_it(self, store: S3Store) -> None:
        """SeaweedFS 4.48 completes two uploads of one name, so there is another way to name objects."""
        for name in map(str, range(4)):
            staged = [store.stage_writer(name) for _ in range(4)]
            for number, writer in enumerate(staged):
                writer.file.write(bytes([number]) * (PART_BYTES + 1))
            with ThreadPoolExecutor(8) as pool:
                commits = [pool.submit(writer.commit) for writer in staged]
                creations = [pool.submit(store.create, name, b"small") for _ in range(4)]
                outcomes = [future.result() for future in commits + creations]
            assert outcomes.count(True) == 1
            winner = outcomes.index(True)
            assert store.read(name, 0, 1) == (bytes([winner]) if winner < 4 else b"s")

    @pytest.mark.parametrize(("exclusive", "other"), [(True, "false"), (False, "true")])
    def test_a_refusal_of_its_large_objects_names_the_setting_that_helps(
        self, store: S3Store, exclusive: bool, other: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server ignores the condition, or answers 304 where S3 answers 412."""
        options = replace(store.options, exclusive_multipart=exclusive, part_bytes=1024)
        odd = S3Store(store.uri, options)
        commit = StagedUpload.commit
        monkeypatch.setattr(StagedUpload, "commit", lambda upload: commit(upload) or True)
        says = f"set exclusive_multipart = {other} in the storage table"
        with pytest.raises(UnsupportedStoreError, match=says):
            odd.check()
        with pytest.raises(UnsupportedStoreError, match=says):
            StoreCheck(odd, odd, race_in_threads, SystemClock(), random_id, QUICK).must_hold()

    def test_a_server_side_copy_moves_no_bytes_here(self, s3_endpoint: S3Endpoint, store: S3Store) -> None:
        writer = store.stage_writer("here")
        writer.file.write(random.Random(1).randbytes(3 * PART_BYTES))
        assert writer.commit()
        [listed] = store.list("")
        target = S3Store(f"s3://{s3_endpoint.buckets[1]}/copies", store.options)
        staged = target.stage_copy(store, listed, "there")
        assert staged.crc32 == zlib.crc32(random.Random(1).randbytes(3 * PART_BYTES)), "the server tells it"
        assert staged.commit()
        assert (target.counts.read_bytes, target.counts.written_bytes) == (0, 0)
        assert store.counts.read_bytes == 0
        assert target.read("there") == store.read("here")

    def test_a_server_copy_without_a_checksum_is_replaced_by_a_copy_through_here(
        self, s3_endpoint: S3Endpoint, store: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The checksum of the copied bytes would be unknown."""
        data = random.Random(1).randbytes(3 * PART_BYTES)
        writer = store.stage_writer("here")
        writer.file.write(data)
        assert writer.commit()
        [listed] = store.list("")
        monkeypatch.setattr(StagedUpload, "copy_part", lambda *_: False)
        target = S3Store(f"s3://{s3_endpoint.buckets[1]}/silent", store.options)
        staged = target.stage_copy(store, listed, "there")
        assert staged.crc32 == zlib.crc32(data)
        assert staged.commit()
        assert target.counts.written_bytes == len(data)
        assert target.read("there") == data

    def test_another_profile_or_endpoint_copies_through_here(self, store: S3Store) -> None:
        writer = store.stage_writer("here")
        writer.file.write(random.Random(1).randbytes(3 * PART_BYTES))
        assert writer.commit()
        [listed] = store.list("")
        patient = StoreOptions(store.options.endpoint_url, "us-east-1", timeout_s=60, part_bytes=PART_BYTES)
        target = S3Store(f"s3://{store.bucket}/elsewhere", patient)
        assert target.stage_copy(store, listed, "there").commit()
        assert target.read("there") == store.read("here")

    def test_a_copy_notices_that_the_source_is_replaced_on_the_way(self, store: S3Store) -> None:
        class ReplacedMeanwhile(S3Store):
            """The object is replaced after the first piece was read."""

            def open(self, source_object: StoredObject):  # type: ignore[no-untyped-def]
                reader = super().open(source_object)
                if self.counts.reads > 0:
                    self.delete([source_object.name])
                    self.create(source_object.name, bytes(source_object.size_bytes))
                return reader

        writer = store.stage_writer("here")
        writer.file.write(random.Random(1).randbytes(6 * PART_BYTES))
        assert writer.commit()
        [listed] = store.list("")
        patient = StoreOptions(store.options.endpoint_url, "us-east-1", timeout_s=60, part_bytes=PART_BYTES)
        source = ReplacedMeanwhile(store.uri, store.options)
        target = S3Store(f"s3://{store.bucket}/elsewhere", patient)
        with pytest.raises(SourceChangedError):
            target.stage_copy(source, listed, "never")
        assert target.list("never") == []

    @pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
    def test_a_forked_child_has_connections_of_its_own(self, store: S3Store) -> None:
        store.create("name", b"data")
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)

        def child() -> None:
            sender.send((store.read("name"), id(client_of(store.options))))

        process = context.Process(target=child)
        process.start()
        assert receiver.poll(30)
        data, child_client = receiver.recv()
        process.join(30)
        assert data == b"data"
        assert child_client != id(client_of(store.options))

    @pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
    @pytest.mark.parametrize("start", ["fork", "spawn"])
    def test_another_process_has_a_file_system_of_its_own(self, store: S3Store, start: str) -> None:
        pytest.importorskip("s3fs")
        by_s3fs = S3Store(store.uri, replace(store.options, driver="fsspec"))
        by_s3fs.create("name", b"data")
        context = multiprocessing.get_context(start)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_read_into, args=(by_s3fs, sender))
        process.start()
        assert receiver.poll(30)
        assert receiver.recv() == b"data"
        process.join(30)
        assert by_s3fs.read("name") == b"data"

    def test_sweep_removes_uploads_and_staged_objects_of_the_dead(self, store: S3Store) -> None:
        writer = store.stage_writer(f"{'a' * 32}/dead")
        writer.file.write(bytes(2 * PART_BYTES))
        clock = ManualClock(SystemClock().now_ms())
        later = S3Store(store.uri, store.options, clock)
        assert later.sweep_staging(60_000) == 0
        clock.advance_ms(120_000)
        later.now_ms = clock.now_ms  # type: ignore[method-assign]
        assert later.sweep_staging(60_000) == 1
        with pytest.raises(StorageError):
            writer.commit()
        assert store.list("") == []

    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("prefix", ["", "shared"])
    def test_sweep_leaves_alone_what_others_upload_deeper_in_the_bucket(
        self, s3_endpoint: S3Endpoint, options: StoreOptions, prefix: str, exclusive: bool
    ) -> None:
        """A root may be a whole bucket with folders of other clusters and other programs."""
        options = replace(options, exclusive_multipart=exclusive)
        inner = f"{prefix}/cluster-b/broker-1".strip("/")
        later = ManualClock(SystemClock().now_ms() + 120_000)
        mine = [f"{'a' * 32}.{'0' * 8}/t-{'b' * 32}/0.0/x", f"t-{'b' * 32}/0/x"]
        foreign = ["t-b/0/x", "backup.tar"]
        roots = [(prefix, mine), (inner, mine), (prefix, foreign if exclusive else [])]
        begun = [
            S3Store(f"s3://{s3_endpoint.bucket}/{root}", options).stage_writer(n)
            for root, names in roots
            for n in names
        ]
        for writer in begun:
            writer.file.write(bytes(2 * PART_BYTES))
        try:
            root = S3Store(f"s3://{s3_endpoint.bucket}/{prefix}", options, later)
            root.now_ms = later.now_ms  # type: ignore[method-assign]
            assert [root.sweep_staging(60_000), root.sweep_staging(60_000)] == [2, 0]
            for writer in begun[:2]:
                with pytest.raises(StorageError):
                    writer.commit()
            assert all(writer.commit() for writer in begun[2:])
        finally:
            for writer in begun:
                writer.abort()
            store = S3Store(f"s3://{s3_endpoint.bucket}/{prefix}", options)
            store.delete(foreign)
            S3Store(f"s3://{s3_endpoint.bucket}/{inner}", options).delete(mine)

    def test_errors_and_pickles_carry_no_secret(self, s3_endpoint: S3Endpoint, store: S3Store) -> None:
        store.create("name", b"data")
        missing = open_store("s3://no-such-bucket/x", store.options)
        with pytest.raises(StorageError) as caught:
            missing.create("name", b"data")
        for shown in (repr(store), str(pickle.dumps(store)), str(caught.value)):
            assert SECRET_KEY not in shown
