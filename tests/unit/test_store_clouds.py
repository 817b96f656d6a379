"""The promises of the stores on Azure and Google beyond the contract: refusals, stalls and lost answers of
servers, repeated requests, forks, and secrets."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import pickle
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from email import message_from_bytes
from email.policy import HTTP
from importlib.util import find_spec
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    OutcomeUnknownError,
    StorageAuthenticationError,
    StorageAuthorizationError,
    StorageError,
    StoreTimeoutError,
    UnsupportedStoreError,
)
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider
from stratalog.partitions.store.object_fsspec import FsspecStore
from stratalog.partitions.store.object_http import HttpRequest
from stratalog.partitions.store.rules import Tally
from tests.cloud_servers import CloudEndpoint
from tests.s3_server import HOST, free_ports
from tests.unit.scripted_server import Handler, ScriptedServer, half_a_body, stall
from tests.unit.store_kinds import leftovers, names, some_bytes

if not (find_spec("adlfs") and find_spec("gcsfs")):  # the imports take half a second
    pytest.skip("needs stratalog[azure,gcs]", allow_module_level=True)

KEY = base64.b64encode(b"a secret key").decode()
SIGNATURE = "sig=a-secret-signature"
RETRIES = 2
TIMEOUT_S = 1.5
_MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"


def answer(request: Handler, status: int, code: str = "", body: bytes = b"") -> None:
    """An answer in the formats of both clouds."""
    if code:
        body = json.dumps({"error": {"code": status, "errors": [{"reason": code}]}}).encode()
    elif "/storage/v1/" in request.path and "alt=media" not in request.path:
        about = {
            "name": "prefix/name",
            "size": str(len(body)),
            "generation": "7",
            "timeCreated": "2025-01-01T00:00:00Z",
        }
        body = json.dumps(about).encode()
    request.send_response(status)
    headers = {"Content-Length": str(len(body)), "ETag": '"7"', "Last-Modified": _MODIFIED}
    for name, value in (headers | ({"x-ms-error-code": code} if code else {})).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def is_creation(request: Handler) -> bool:
    return request.command == "PUT" or "uploadType=multipart" in request.path


def obey(request: Handler) -> None:
    """Answer like the cloud, for the only object."""
    objects = request.scripted.objects
    if is_creation(request):
        if "it" in objects:
            of_azure = request.command == "PUT"
            answer(request, *((409, "BlobAlreadyExists") if of_azure else (412, "conditionNotMet")))
        else:
            objects["it"] = b"data"
            answer(request, 201)
    elif "it" in objects:
        answer(request, 200, body=objects["it"])
    else:
        answer(request, 404, "BlobNotFound")


def busy(request: Handler) -> None:
    answer(request, 503, "ServerBusy")


def too_many(request: Handler) -> None:
    answer(request, 429, "rateLimitExceeded")


def limited(request: Handler) -> None:
    answer(request, 403, "rateLimitExceeded")


def forbidden(request: Handler) -> None:
    answer(request, 403, "AuthorizationPermissionMismatch" if request.command == "PUT" else "forbidden")


def unknown_caller(request: Handler) -> None:
    answer(request, 401, "authError")


def hang_up(request: Handler) -> None:
    request.close_connection = True


def obey_and_hang_up(request: Handler) -> None:
    request.scripted.objects["it"] = b"data"
    request.close_connection = True


OpenOn = Callable[[str], FsspecStore]


@pytest.fixture(params=["azure", "gcs"])
def store_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenOn:
    """Opens a store at an address, with a short timeout and without back-off."""

    def opened(url: str) -> FsspecStore:
        connection = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={KEY};BlobEndpoint={url}/a;"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        scheme = "az" if request.param == "azure" else "gs"
        options = StoreOptions(timeout_s=TIMEOUT_S, retries=RETRIES)
        return FsspecStore(f"{scheme}://bucket/prefix", options, ManualClock(), rng=random.Random(1))

    return opened


class TestCreate:
    @pytest.mark.parametrize("trouble", [busy, too_many, hang_up])
    def test_a_create_goes_through_when_the_server_recovers(
        self, server: ScriptedServer, store_on: OpenOn, trouble: Callable[[Handler], None]
    ) -> None:
        server.script = [trouble, trouble, obey]
        store = store_on(server.url)
        assert store.create("name", b"data") is True
        assert (store.counts.creates, store.counts.written_bytes) == (3, 4)

    def test_a_lost_answer_of_our_own_success_reads_as_taken(
        self, server: ScriptedServer, store_on: OpenOn
    ) -> None:
        server.script = [obey_and_hang_up, obey]
        store = store_on(server.url)
        assert store.create("name", b"data") is False
        assert store.read("name") == b"data"

    @pytest.mark.parametrize("behaviour", [pytest.param(stall, marks=pytest.mark.slow), busy, obey_and_hang_up])
    def test_without_any_answer_the_outcome_is_unknown_and_only_we_repeat(
        self, server: ScriptedServer, store_on: OpenOn, behaviour: Callable[[Handler], None]
    ) -> None:
        server.script = [behaviour]
        with pytest.raises(OutcomeUnknownError, match="prefix/name"):
            store_on(server.url).create("name", b"data")
        assert len(server.requests) == RETRIES + 1

    def test_a_refusal_changes_nothing_for_certain(self, server: ScriptedServer, store_on: OpenOn) -> None:
        server.script = [forbidden]
        with pytest.raises(StorageAuthorizationError, match="create there") as caught:
            store_on(server.url).create("name", b"data")
        assert (caught.value.right, len(server.requests)) == ("create", 1)

    def test_a_refusal_after_a_lost_answer_is_unknown_while_nothing_is_seen(
        self, server: ScriptedServer, store_on: OpenOn
    ) -> None:
        server.script = [hang_up, forbidden, obey]
        with pytest.raises(OutcomeUnknownError):
            store_on(server.url).create("name", b"data")

    def test_an_unknown_caller_learns_where_credentials_go(self, server: ScriptedServer, store_on: OpenOn) -> None:
        server.script = [unknown_caller]
        with pytest.raises(StorageAuthenticationError, match=r"set (AZURE_STORAGE|GOOGLE_APPLICATION)"):
            store_on(server.url).create("name", b"data")

    def test_a_server_that_was_never_reached_changed_nothing(self, store_on: OpenOn) -> None:
        [nobody_there] = free_ports(1)
        store = store_on(f"http://{HOST}:{nobody_there}")
        with pytest.raises(StorageError, match=f"cannot connect to {HOST}:{nobody_there}"):
            store.create("name", b"data")
        with pytest.raises(BrokerUnreachableError):
            store.list("")


class TestRead:
    @pytest.mark.parametrize("trouble", [busy, half_a_body, pytest.param(stall, marks=pytest.mark.slow)])
    def test_a_read_goes_through_when_the_server_recovers(
        self, server: ScriptedServer, store_on: OpenOn, trouble: Callable[[Handler], None]
    ) -> None:
        server.objects["it"] = b"data"
        server.script = [trouble, obey]
        store = store_on(server.url)
        assert store.read("name") == b"data"
        assert (store.counts.reads, store.counts.read_bytes, len(server.requests)) == (2, 4, 2)

    @pytest.mark.slow
    def test_no_answer_is_a_timeout(self, server: ScriptedServer, store_on: OpenOn) -> None:
        server.script = [stall]
        with pytest.raises(StoreTimeoutError, match="prefix/name"):
            store_on(server.url).read("name")

    def test_an_answer_that_cannot_be_read_is_no_listing(self, server: ScriptedServer, store_on: OpenOn) -> None:
        server.objects["it"] = b"<html>"
        server.script = [lambda request: Handler.answer(request, 200, body=b"<html>Welcome")]
        with pytest.raises(StorageError, match="unreadable answer"):
            store_on(server.url).list("")


def test_google_says_by_403_that_requests_come_too_fast(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    server.script = [limited, obey]
    store = FsspecStore("gs://bucket/prefix", StoreOptions(retries=RETRIES), ManualClock(), rng=random.Random(1))
    assert store.create("name", b"data") is True


@pytest.mark.slow
def test_a_delete_repeats_what_failed_and_names_what_stays(server: ScriptedServer, store_on: OpenOn) -> None:
    server.script = [busy, forbidden]
    with pytest.raises(StorageError, match="prefix/name"):
        store_on(server.url).delete(["name"])
    server.script = [busy, obey]
    store_on(server.url).delete(["name"])


def test_google_gets_bytes_that_look_like_the_end_of_a_request() -> None:
    """Every constant of the product is known to producers."""
    from stratalog.partitions.store import object_gcs

    data = b"record\r\n--==stratalog==--\r\n" + b"more"
    objects = object_gcs.GcsObjects(None, "gs://bucket", Tally())  # type: ignore[arg-type]
    objects.requests = SimpleNamespace(options=StoreOptions())  # type: ignore[assignment]
    request = objects.put_request("name", data, data, exclusive=True)
    message = message_from_bytes(
        b"Content-Type: " + request.headers["Content-Type"].encode() + b"\r\n\r\n" + request.body, policy=HTTP
    )
    _, sent = message.get_payload()
    assert sent.get_payload(decode=True) == data


def test_an_object_that_cannot_be_deleted_keeps_no_other(server: ScriptedServer, store_on: OpenOn) -> None:
    """More keys than one batch, and the refused one is first."""

    def held(request: Handler) -> None:
        answer(request, *((409, "BlobImmutableDueToPolicy") if "a-000" in request.path else (202, "")))

    server.script = [held]
    store = store_on(server.url)
    with pytest.raises(StorageError, match=r"cannot delete prefix/a-000 \(409 BlobImmutableDueToPolicy\)"):
        store.delete([f"a-{number:03}" for number in range(70)])
    assert len({each.partition("a-")[2] for each in server.requests if each.startswith("DELETE")}) == 70


def test_a_caller_who_may_delete_nothing_learns_it_after_one_batch(
    server: ScriptedServer, store_on: OpenOn
) -> None:
    server.script = [lambda request: answer(request, 403)]
    with pytest.raises(StorageAuthorizationError, match=r"prefix/a-000 .*and 12 more"):
        store_on(server.url).delete([f"a-{number:03}" for number in range(70)])
    assert len({each.partition("a-")[2] for each in server.requests}) == 32


def test_a_delete_without_credentials_is_refused_like_any_call(store_on: OpenOn) -> None:
    def none(_root: str) -> Mapping[str, str]:
        raise LookupError

    opened = store_on(f"http://{HOST}:1")
    options = replace(opened.options, credentials=CredentialSource(GivenProvider("none", none), opened.uri))
    with pytest.raises(StorageAuthenticationError, match="the credential provider"):
        FsspecStore(opened.uri, options, ManualClock()).delete(["name"])


class TestSecrets:
    def test_secrets_are_in_no_message_and_no_pickle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        [nobody_there] = free_ports(1)
        url = f"http://{HOST}:{nobody_there}"
        for secret, shown in ((KEY, f"AccountKey={KEY}"), (SIGNATURE, f"SharedAccessSignature=sv=1&{SIGNATURE}")):
            connection = f"DefaultEndpointsProtocol=http;AccountName=a;{shown};BlobEndpoint={url}/a;"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
            store = FsspecStore("az://bucket/prefix", StoreOptions(retries=0), ManualClock())
            with pytest.raises(StorageError) as caught:
                store.read("name")
            assert caught.value.__cause__ is None
            for text in (str(caught.value), repr(store), repr(vars(store)), repr(pickle.dumps(store))):
                assert secret not in text

    def test_an_account_that_nobody_names_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("AZURE_STORAGE_ANON", "true")
        with pytest.raises(StorageAuthenticationError, match="no storage account is named"):
            open_store("az://container/x").read("name")

    def test_an_account_of_the_address_goes_before_the_environments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = f"AccountName=other;AccountKey={KEY};EndpointSuffix=core.windows.net"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        with pytest.raises(UnsupportedStoreError, match=r"account is mine, but .* other"):
            open_store("abfss://c@mine.dfs.core.windows.net/x").read("name")


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, package, extra in (("az://c/x", "adlfs", "azure"), ("gs://b/x", "gcsfs.core", "gcs")):
        monkeypatch.delitem(sys.modules, f"stratalog.partitions.store.object_{extra}", raising=False)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UnsupportedStoreError, match=rf"pip install 'stratalog\[{extra}\]'"):
            open_store(uri)


def _read_in_child(store: Store, answers: Connection) -> None:
    answers.send((os.getpid(), store.read("name")))


@pytest.mark.s3
@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["azure", "gcs"])
class TestOnServers:
    @pytest.fixture
    def root(self, kind: str, request: pytest.FixtureRequest) -> str:
        endpoint: CloudEndpoint = request.getfixturevalue(f"{kind}_endpoint")
        return f"{endpoint.root}/{request.node.originalname}"

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    @pytest.mark.parametrize("driver", [None, "fsspec"], ids=["requests", "calls"])
    def test_a_forked_child_has_connections_of_its_own_and_ends(self, root: str, driver: str | None) -> None:
        store = open_store(f"{root}-{driver}", StoreOptions(driver=driver))
        assert store.create("name", b"data")
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=_read_in_child, args=(store, theirs))
        child.start()
        assert ours.poll(20)
        assert ours.recv() == (child.pid, b"data")
        assert store.read("name") == b"data"
        child.join(20)
        assert child.exitcode == 0

    def test_an_object_may_have_very_many_parts(self, root: str) -> None:
        """Google composes 32 objects at a time."""
        store = open_store(root, StoreOptions(part_bytes=100))
        data = some_bytes(100 * 40 + 1)
        staged = store.stage_writer("name")
        staged.file.write(data)
        assert names(store) == []
        assert staged.commit()
        assert store.read("name") == data
        assert (names(store), leftovers(store)) == (["name"], 0)

    def test_names_may_have_any_characters(self, root: str) -> None:
        store = open_store(root)
        odd = ["a b", "ä/%41", "x+y?z", "q#&=", "'\"<>"]
        for name in odd:
            assert store.create(name, name.encode())
        assert names(store) == sorted(odd)
        for name in odd:
            assert store.read(name) == name.encode()
            assert store.stat(name).size_bytes == len(name.encode())
        store.delete(odd)
        assert names(store) == []


@pytest.mark.s3
@pytest.mark.nightly
def test_folders_of_a_hierarchical_namespace_are_no_objects(azure_endpoint: CloudEndpoint) -> None:
    store = open_store(f"{azure_endpoint.root}/hierarchical")
    assert store.create("folder/name", b"data")
    assert isinstance(store, FsspecStore)
    headers = {
        "x-ms-blob-type": "BlockBlob",
        "x-ms-meta-hdi_isfolder": "true",
        "Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg==",
    }
    store._objects.put("k", "make", HttpRequest("PUT", "hierarchical/folder", {}, headers))
    assert names(store) == ["folder/name"]


@pytest.mark.s3
@pytest.mark.nightly
def test_blocks_that_another_commit_used_mean_that_the_name_was_taken(azure_endpoint: CloudEndpoint) -> None:
    store = open_store(f"{azure_endpoint.root}/two-writers", StoreOptions(part_bytes=100))
    mine, others = store.stage_writer("name"), store.stage_writer("name")
    mine.file.write(b"m" * 250)
    others.file.write(b"o" * 250)
    assert others.commit() is True
    assert mine.commit() is False
    assert store.read("name") == b"o" * 250
