"""Encryption: no plain HTTP unless it is enabled, and no writes to a storage without the key."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError, UnsupportedStoreError
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.encryption import check_connection, check_key
from tests.unit.scripted_server import Handler, ScriptedServer, busy, forbidden, obey

PLAIN = "http://storage.example.invalid:9000"
ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234"
OF_GOOGLE = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"


@pytest.mark.parametrize(
    "url", ["https://storage.example.org", "http://localhost:1", "http://127.0.0.1:9", "http://[::1]:9", ""]
)
def test_tls_and_this_machine_need_no_option(url: str) -> None:
    check_connection(url, StoreOptions())


@pytest.mark.parametrize("url", [PLAIN, "http://10.0.0.7", "http://localhost.example.org", "HTTP://minio"])
def test_plain_http_must_be_requested(url: str) -> None:
    with pytest.raises(UnsupportedStoreError, match=r"is not encrypted.*plain_http = true"):
        check_connection(url, StoreOptions())
    check_connection(url, StoreOptions(plain_http=True))


@pytest.mark.parametrize(
    ("variable", "value", "address"),
    [
        ("AWS_ENDPOINT_URL_S3", PLAIN, "s3://bucket/root"),
        (
            "AZURE_STORAGE_CONNECTION_STRING",
            f"AccountName=a;AccountKey={base64.b64encode(b'k').decode()};BlobEndpoint={PLAIN}/a;",
            "az://box/root",
        ),
        ("STORAGE_EMULATOR_HOST", PLAIN, "gs://bucket/root"),
    ],
)
def test_an_unencrypted_server_that_the_environment_names_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, address: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedStoreError, match=r"storage\.example\.invalid is not encrypted"):
        open_store(address, StoreOptions(region="eu" if address.startswith("s3") else None), ManualClock())


def cluster_file(
    folder: Path, more: str, remote: str = "s3://bucket/remote", root: str = "s3://bucket/b1"
) -> Path:
    path = folder / "cluster.toml"
    path.write_text(
        f'[cluster]\nid = "c"\nremote = "{remote}"\nvoters = [1]\n'
        f'[[brokers]]\nid = 1\nlog_dir = "{root}"\n{more}\n'
    )
    return path


def test_a_cluster_file_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    text = f'[s3]\nendpoint_url = "{PLAIN}"\n'
    with pytest.raises(InvalidCallError, match=r"cluster file .*, s3: http://storage\.example\.invalid"):
        load_cluster_file(cluster_file(tmp_path, text))
    file = load_cluster_file(cluster_file(tmp_path, f"{text}plain_http = true\n"))
    assert file.brokers[0].storage == StoreOptions(PLAIN, "us-east-1", plain_http=True)


@pytest.mark.parametrize(
    ("scheme", "table", "key"), [("az", "azure", "encryption_scope"), ("gs", "gcs", "kms_key_id")]
)
def test_a_key_that_logs_of_tables_would_not_have_is_refused(
    tmp_path: Path, scheme: str, table: str, key: str
) -> None:
    """For brokers the key is accepted, because this product writes everything there itself."""
    own = f'[brokers.storage]\n{key} = "k"\n'
    broker = load_cluster_file(cluster_file(tmp_path, own, f"{scheme}://box/remote", f"{scheme}://box/b1"))
    assert getattr(broker.brokers[0].storage, key) == "k"
    with pytest.raises(InvalidCallError, match=rf"remote\.storage: {key} is not possible here: delta-rs"):
        load_cluster_file(cluster_file(tmp_path, f'[{table}]\n{key} = "k"', f"{scheme}://box/remote"))


@pytest.mark.parametrize(
    ("wanted", "answered"),
    [
        *((None, None), (ARN, ARN), ("1234", ARN), (ARN, "1234"), ("scope", "scope")),
        *(("alias/logs", ARN), ("arn:aws:kms:eu-central-1:111122223333:alias/logs", ARN)),
        (OF_GOOGLE, f"{OF_GOOGLE}/cryptoKeyVersions/7"),
    ],
)
def test_an_answer_that_names_the_requested_key_is_accepted(wanted: str | None, answered: str | None) -> None:
    check_key(wanted, answered, "s3://bucket/x")


@pytest.mark.parametrize(
    ("wanted", "answered"),
    [(ARN, None), (ARN, ""), (ARN, "AES256"), ("4", ARN), (OF_GOOGLE, f"{OF_GOOGLE}2/cryptoKeyVersions/7")],
)
def test_another_key_or_none_is_refused(wanted: str, answered: str | None) -> None:
    with pytest.raises(
        UnsupportedStoreError, match=r"s3://bucket/x must be encrypted with .* the storage (does|enc)"
    ):
        check_key(wanted, answered, "s3://bucket/x")


# ------------------------------------------------------------------------------ servers that keep it, or not


@pytest.fixture(params=["s3", "az", "gs"])
def kind(request: pytest.FixtureRequest, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    key = base64.b64encode(b"a key").decode()
    connection = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={key};BlobEndpoint={server.url}/a;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return str(request.param)


def answering(kept: bool) -> Callable[[Handler], None]:
    """A server that stores and reports the named key; or that knows nothing of keys."""

    def answer(request: Handler) -> None:
        headers = request.headers.items()
        request.more = {
            "x-ms-request-id": "1",
            **({name: text for name, text in headers if "encryption" in name.lower()} if kept else {}),
        }
        named = request.path.partition("kmsKeyName=")[2].partition("&")[0]
        about = {"name": "x", "generation": "1", **({"kmsKeyName": named} if kept else {})}
        body = json.dumps(about).encode() if "/storage/v1/" in request.path else b""
        request.answer(201 if "x-ms-version" in request.headers else 200, body=body)

    return answer


@pytest.mark.slow
def test_a_created_object_must_be_encrypted_with_the_key(server: ScriptedServer, kind: str) -> None:
    options = {
        "s3": StoreOptions(server.url, "eu", kms_key_id="k"),
        "az": StoreOptions(encryption_scope="k"),
        "gs": StoreOptions(kms_key_id="k"),
    }[kind]
    root = f"{kind}://bucket/root"
    server.script = [answering(True)]
    assert open_store(root, options, ManualClock()).create("x", b"data")
    server.script = [answering(False)]
    with pytest.raises(UnsupportedStoreError, match="must be encrypted with k, but the storage does not confirm"):
        open_store(root, options, ManualClock()).create("y", b"data")
    nothing_asked = replace(options, kms_key_id=None, encryption_scope=None)
    assert open_store(root, nothing_asked, ManualClock()).create("z", b"data")


@pytest.mark.parametrize("refused", [forbidden, busy])
def test_an_object_whose_key_cannot_be_read_is_not_reported_as_refused(
    server: ScriptedServer, refused: Callable[[Handler], None]
) -> None:
    """The server names no key in its answers to creates, and refuses the request for the object's status."""
    server.script = [obey, refused]
    store = open_store("s3://bucket/root", StoreOptions(server.url, "eu", kms_key_id="k"), ManualClock())
    why = {forbidden: r"403: .*s3:GetObject", busy: "look for .*6 attempts"}[refused]
    with pytest.raises(OutcomeUnknownError, match=f"root/x was created, but its key cannot be read: {why}"):
        store.create("x", b"data")
    assert server.objects == {"/bucket/root/x": b"data"}
    assert sum(each.startswith("PUT") for each in server.requests) == 1
