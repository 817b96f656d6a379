"""Promises of the store on S3: refusals, stalls and lost answers of servers.

The faulty server is a real one on 127.0.0.1 that follows a script; nothing is patched.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

import pytest

from stratalog.partitions.clock import ManualClock, SystemClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    LogDirError,
    OutcomeUnknownError,
    StorageAuthenticationError,
    StorageAuthorizationError,
    StorageError,
    StoreTimeoutError,
    UnsupportedStoreError,
)
from stratalog.partitions.store import StoredObject, StoreOptions
from stratalog.partitions.store.s3 import S3Store
from stratalog.tiering.delta_options import storage_options
from tests.s3_server import HOST, free_ports
from tests.unit.scripted_server import (
    Handler,
    ScriptedServer,
    busy,
    conflict,
    forbidden,
    garble,
    half_a_body,
    obey,
    obey_and_break,
    obey_and_lose_the_answer,
    scripted_server,
    stall,
)

PART_BYTES = 5 * 1024 * 1024
RETRIES = 2
TIMEOUT_S = 0.5
DRIVER: str | None = None


@pytest.fixture(params=[None, "fsspec"], ids=["botocore", "s3fs"], autouse=True)
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The promises are tested with both clients."""
    if request.param is not None:
        pytest.importorskip("s3fs")
    monkeypatch.setattr(sys.modules[__name__], "DRIVER", request.param)


def store_on(url: str, timeout_s: float = TIMEOUT_S) -> S3Store:
    """A store with a short timeout and without back-off."""
    options = StoreOptions(
        url, "us-east-1", timeout_s=timeout_s, retries=RETRIES, part_bytes=PART_BYTES, driver=DRIVER
    )
    return S3Store("s3://bucket/prefix", options, ManualClock(), rng=random.Random(1))


LISTED = StoredObject("name", 4, 0, "etag.4")


@pytest.mark.slow
def test_the_key_of_encryption_goes_with_every_request_that_makes_an_object(server: ScriptedServer) -> None:
    """Parts and reads belong to an object that was created with the key, and to no others."""
    keys: list[tuple[str, str | None]] = []

    def begin_an_upload(request: Handler) -> None:
        keys.append((request.command, request.headers.get("x-amz-server-side-encryption-aws-kms-key-id")))
        request.more = {name: text for name, text in request.headers.items() if "server-side" in name.lower()}
        if request.command == "POST":
            body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            request.answer(200, body=body)
        else:
            obey(request)

    server.script = [begin_an_upload]
    options = StoreOptions(server.url, "us-east-1", part_bytes=PART_BYTES, kms_key_id="arn:key", driver=DRIVER)
    store = S3Store("s3://bucket/prefix", options, ManualClock())
    assert store.create("name", b"data")
    staged = store.stage_writer("large")
    staged.file.write(b"x" * (PART_BYTES + 1))
    staged.abort()  # the part exists by then, and no thread continues
    assert store.read("name") == b"data"
    assert [key for command, key in keys if command == "POST"] == ["arn:key"]
    assert keys[0] == ("PUT", "arn:key")
    assert {key for command, key in keys[1:] if command != "POST"} == {None}
    assert storage_options("s3://bucket/table", options)["aws_sse_kms_key_id"] == "arn:key"


class TestCreate:
    @pytest.mark.slow
    def test_a_create_goes_through_when_the_server_recovers(self, server: ScriptedServer) -> None:
        server.script = [busy, busy, obey]
        store = store_on(server.url)
        assert store.create("name", b"data") is True
        assert server.objects == {"/bucket/prefix/name": b"data"}
        assert (store.counts.creates, store.counts.written_bytes) == (3, 4)

    @pytest.mark.slow
    def test_a_lost_answer_of_our_own_success_reads_as_taken(self, server: ScriptedServer) -> None:
        """The contract: after False the caller looks up the object, and finds its own bytes."""
        server.script = [obey_and_lose_the_answer, obey]
        store = store_on(server.url)
        assert store.create("name", b"data") is False
        assert store.read("name") == b"data"

    @pytest.mark.parametrize(
        "behaviour",
        [pytest.param(stall, marks=pytest.mark.slow), busy, garble, obey_and_lose_the_answer, obey_and_break],
    )
    def test_without_any_answer_the_outcome_is_unknown(
        self, server: ScriptedServer, behaviour: Callable[[Handler], None]
    ) -> None:
        server.script = [behaviour]
        with pytest.raises(OutcomeUnknownError, match="prefix/name"):
            store_on(server.url).create("name", b"data")
        assert len(server.requests) == RETRIES + 1

    @pytest.mark.slow
    def test_a_refusal_after_a_lost_answer_is_unknown_while_nothing_is_seen(self, server: ScriptedServer) -> None:
        server.script = [stall, forbidden, obey]
        with pytest.raises(OutcomeUnknownError):
            store_on(server.url).create("name", b"data")

    def test_a_refusal_changes_nothing_for_certain(self, server: ScriptedServer) -> None:
        server.script = [forbidden]
        with pytest.raises(StorageError, match="AccessDenied"):
            store_on(server.url).create("name", b"data")
        assert len(server.requests) == 1

    def test_a_server_that_was_never_reached_changed_nothing(self, server: ScriptedServer) -> None:
        [nobody_there] = free_ports(1)
        with pytest.raises(StorageError):
            store_on(f"http://{HOST}:{nobody_there}").create("name", b"data")

    def test_a_conflict_is_decided_by_who_is_there(self, server: ScriptedServer) -> None:
        server.objects["/bucket/prefix/taken"] = b""
        server.script = [conflict, obey]
        assert store_on(server.url).create("taken", b"data") is False
        server.script = [conflict, obey]
        assert store_on(server.url).create("free", b"data") is True

    @pytest.mark.slow
    def test_conflicts_without_end_are_bounded(self, server: ScriptedServer) -> None:
        def conflict_unless_asked(request: Handler) -> None:
            (obey if request.command == "HEAD" else conflict)(request)

        server.script = [conflict_unless_asked]
        with pytest.raises(StorageError, match="conflicts"):  # a timeout would make the outcome unknown
            store_on(server.url, timeout_s=60.0).create("name", b"data")


class TestRead:
    @pytest.mark.slow
    @pytest.mark.parametrize("trouble", [busy, half_a_body, stall])
    def test_a_read_goes_through_when_the_server_recovers(
        self, server: ScriptedServer, trouble: Callable[[Handler], None]
    ) -> None:
        server.objects["/bucket/prefix/name"] = b"data"
        server.script = [trouble, obey]
        assert store_on(server.url).read("name") == b"data"

    @pytest.mark.slow
    def test_no_answer_is_a_timeout(self, server: ScriptedServer) -> None:
        server.script = [stall]
        with pytest.raises(StoreTimeoutError, match="prefix/name"):
            store_on(server.url).read("name")
        assert len(server.requests) == RETRIES + 1

    @pytest.mark.parametrize("trouble", [busy, forbidden, half_a_body])
    @pytest.mark.slow
    def test_a_server_that_fails_is_a_storage_error(
        self, server: ScriptedServer, trouble: Callable[[Handler], None]
    ) -> None:
        server.script = [trouble]
        with pytest.raises(StorageError, match="prefix/name"):
            store_on(server.url).read("name")
        with pytest.raises(StorageError, match="prefix/name"), store_on(server.url).open(LISTED) as reader:
            reader.read()

    def test_a_listing_needs_a_server(self, server: ScriptedServer) -> None:
        [nobody_there] = free_ports(1)
        with pytest.raises(BrokerUnreachableError):
            store_on(f"http://{HOST}:{nobody_there}").list("")

    def test_a_root_that_may_not_be_listed_is_not_away(self, server: ScriptedServer) -> None:
        """No broker is fenced because one driver lacks a right."""
        server.script = [lambda request: request.answer(403, "AccessDenied")]
        with pytest.raises(StorageAuthorizationError, match=r"cannot list .*s3:ListBucket") as refused:
            store_on(server.url).list("a")
        assert (refused.value.right, refused.value.path) == ("list", "s3://bucket/prefix/a")

    def test_a_part_that_may_not_be_uploaded_is_a_right_that_is_missing(self, server: ScriptedServer) -> None:
        server.script = [lambda request: request.answer(403, "AccessDenied")]
        staged = store_on(server.url).stage_writer("name")
        with pytest.raises(StorageAuthorizationError, match=r"cannot .*s3:PutObject") as refused:
            staged.file.write(b"x" * 2 * PART_BYTES)
        assert (refused.value.right, refused.value.path) == ("create", "s3://bucket/prefix/name")

    def test_a_delete_that_is_refused_names_what(self, server: ScriptedServer) -> None:
        error = b"<Error><Key>prefix/b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        server.script = [lambda request: request.answer(200, body=b"<DeleteResult>%b</DeleteResult>" % error)]
        with pytest.raises(StorageAuthorizationError, match=r"prefix/b \(AccessDenied\)") as refused:
            store_on(server.url).delete(["a", "b"])
        assert (refused.value.right, refused.value.path) == ("delete", "s3://bucket/prefix/b")

    def test_an_object_that_cannot_be_deleted_keeps_no_other(self, server: ScriptedServer) -> None:
        error = b"<Error><Key>prefix/0000</Key><Code>ObjectLocked</Code><Message>no</Message></Error>"
        server.script = [
            lambda request: request.answer(200, body=b"<DeleteResult>%b</DeleteResult>" % error),
            lambda request: request.answer(200, body=b"<DeleteResult></DeleteResult>"),
        ]
        with pytest.raises(StorageError, match=r"prefix/0000 \(ObjectLocked\) of s3://bucket"):
            store_on(server.url).delete([f"{number:04}" for number in range(1001)])
        assert len(server.requests) == 2

    @pytest.mark.parametrize(
        ("status", "code", "error"),
        [
            (403, "SignatureDoesNotMatch", StorageAuthenticationError),
            (403, "InvalidAccessKeyId", StorageAuthenticationError),
            (400, "ExpiredToken", StorageAuthenticationError),
            (403, "AccessDenied", StorageAuthorizationError),
            (403, "", StorageAuthorizationError),
        ],
    )
    @pytest.mark.slow
    def test_a_refused_caller_learns_the_reason_and_what_to_do(
        self, server: ScriptedServer, status: int, code: str, error: type[StorageError]
    ) -> None:
        """Kafka's SASL_AUTHENTICATION_FAILED and CLUSTER_AUTHORIZATION_FAILED; status and code appear once."""
        server.script = [lambda request: request.answer(status, code)]
        store = store_on(server.url)
        for call in (store.check, lambda: store.read("name"), lambda: store.create("name", b"")):
            with pytest.raises(StorageError) as refused:
                call()
            assert type(refused.value) is error
            text = str(refused.value)
            assert f": {status} {code}".rstrip() + ": " in text
            assert text.count(str(status)) == 1
            assert "credentials" in text

    def test_an_answer_without_a_body_is_reported_by_its_status_once(self, server: ScriptedServer) -> None:
        server.script = [forbidden]
        with pytest.raises(StorageAuthorizationError, match=r"name: 403: .* or they are wrong") as refused:
            store_on(server.url).stat("name")
        assert str(refused.value).count("403") == 1


class TestCheck:
    @pytest.mark.slow
    def test_a_server_that_ignores_the_condition_is_refused(self, server: ScriptedServer) -> None:
        def replace(request: Handler) -> None:
            request.scripted.objects.pop(request.path, None) if request.command == "PUT" else None
            if request.command == "POST" or "list-type" in request.path:
                request.answer(200, body=b"<ListBucketResult></ListBucketResult>")
            else:
                obey(request)

        server.script = [replace]
        with pytest.raises(UnsupportedStoreError, match="without exclusive create"):
            store_on(server.url).check()

    def test_a_missing_server_fails_the_check(self, server: ScriptedServer) -> None:
        [nobody_there] = free_ports(1)
        with pytest.raises(LogDirError):
            store_on(f"http://{HOST}:{nobody_there}").check()


class TestSweep:
    @pytest.mark.slow
    def test_an_upload_that_another_sweep_has_just_dropped_is_no_failure(self, server: ScriptedServer) -> None:
        dropped = uploads(server, pages=[listed_uploads("one", "two")], answers={"one": (404, "NoSuchUpload")})
        assert later(server).sweep_staging(0) == 2
        assert dropped == ["one", "two"]

    def test_an_upload_that_may_not_be_dropped_is_a_failure(self, server: ScriptedServer) -> None:
        uploads(server, pages=[listed_uploads("one", "two")], answers={"one": (403, "AccessDenied")})
        with pytest.raises(StorageError, match="AccessDenied"):
            later(server).sweep_staging(0)

    @pytest.mark.slow
    def test_pages_without_a_marker_of_uploads_continue_after_the_key(self, server: ScriptedServer) -> None:
        dropped = uploads(server, pages=[listed_uploads("one", after="k"), listed_uploads("two")])
        assert later(server).sweep_staging(0) == 2
        assert dropped == ["one", "two"]
        pages = [asked for asked in server.requests if "?uploads" in asked]
        assert ["key-marker=k" in asked for asked in pages] == [False, True]


def later(server: ScriptedServer) -> S3Store:
    """A store for which all uploads are old."""
    store = store_on(server.url)
    return S3Store(store.uri, store.options, ManualClock(SystemClock().now_ms()))


def listed_uploads(*ids: str, after: str = "") -> bytes:
    """A page of incomplete uploads; ``after``: there are more."""
    entries = "".join(
        f"<Upload><Key>prefix/{'a' * 32}/x</Key><UploadId>{an_id}</UploadId>"
        "<Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
        for an_id in ids
    )
    more = f"<IsTruncated>true</IsTruncated><NextKeyMarker>{after}</NextKeyMarker>" if after else ""
    return f"<ListMultipartUploadsResult>{more}{entries}</ListMultipartUploadsResult>".encode()


def uploads(
    server: ScriptedServer, *, pages: list[bytes], answers: Mapping[str, tuple[int, str]] | None = None
) -> list[str]:
    """A server that lists these pages of uploads, and gives this answer to a request to abort one; yields the
    aborted uploads.
    """
    dropped: list[str] = []

    def answer(request: Handler) -> None:
        query = parse_qs(urlsplit(request.path).query, keep_blank_values=True)
        if request.command == "DELETE":
            dropped.extend(query["uploadId"])
            request.answer(*(answers or {}).get(dropped[-1], (204,)))
        elif request.command == "HEAD":  # the request asks for the server's time
            request.answer(404)
        elif "uploads" in query:
            request.answer(200, body=pages.pop(0))
        else:
            request.answer(200, body=b"<ListBucketResult></ListBucketResult>")

    server.script = [answer]
    return dropped


class TestCredentials:
    def test_credentials_are_in_no_pickle_message_or_name(self, server: ScriptedServer) -> None:
        store = store_on(server.url)
        server.script = [forbidden]
        with pytest.raises(StorageError) as caught:
            store.create("name", b"data")
        for shown in (repr(store), str(caught.value), repr(store.options), str(pickle.dumps(store))):
            assert "scripted" not in shown

    def test_calls_without_credentials_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", "no-such-file")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "no-such-file")
        with scripted_server() as server:
            store = store_on(server.url)
            for call in (store.check, lambda: store.create("name", b"data")):
                with pytest.raises(StorageAuthenticationError, match="credentials: set AWS_ACCESS_KEY_ID and"):
                    call()
            assert server.requests == []
