"""The sources of credentials: the environment, a profile, or the instance; found by the store and by Delta alike,
on a real S3 server that refuses all others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.s3_server import ACCESS_KEY, HOST, OTHER_CREDENTIALS, SECRET_KEY
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store import StoreOptions, open_store, s3_session
from tests.s3_server import S3Endpoint
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import table_in

pytestmark = pytest.mark.s3

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
ROLE = "/latest/meta-data/iam/security-credentials/"


class InstanceMetadata(BaseHTTPRequestHandler):
    """The metadata service that gives a cloud machine the credentials of its role."""

    def do_PUT(self) -> None:
        self._answer("a token")

    def do_GET(self) -> None:
        if self.path == ROLE:
            self._answer("broker")
        else:
            keys = {"AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY, "Token": ""}
            self._answer(json.dumps({"Code": "Success", "Expiration": "2999-01-01T00:00:00Z", **keys}))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def instance() -> Iterator[str]:
    """The address of the metadata service."""
    server = ThreadingHTTPServer((HOST, 0), InstanceMetadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{HOST}:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, s3_endpoint: S3Endpoint, tmp_path: Path) -> Iterator[None]:
    """An environment without credentials and without an instance's metadata service."""
    for variable in (*KEYS, *OTHER_CREDENTIALS):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    s3_session._session.cache_clear()
    yield
    s3_session._session.cache_clear()


@pytest.mark.parametrize("way", ["environment", "profile", "instance"])
def test_store_and_table_find_them(
    way: str, nobody: None, instance: str, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile = None
    if way == "environment":
        for variable, value in KEYS.items():
            monkeypatch.setenv(variable, value)
    elif way == "profile":
        profile = "ops"
        lines = ["[ops]", *(f"{variable.lower()} = {value}" for variable, value in KEYS.items())]
        (tmp_path / "credentials").write_text("\n".join(lines))
    else:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", instance)
    options = StoreOptions(s3_endpoint.url, s3_endpoint.region, profile=profile, retries=1)
    store = open_store(f"s3://{s3_endpoint.bucket}/{tmp_path.name}", options)
    assert store.create("name", b"data")
    table = table_in(store, options=options)
    table.ensure(SCHEMA)
    assert table.load().version == 0


def test_without_any_the_error_says_so(nobody: None, s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    options = StoreOptions(s3_endpoint.url, s3_endpoint.region, retries=0)
    store = open_store(f"s3://{s3_endpoint.bucket}/{tmp_path.name}", options)
    with pytest.raises(StorageError, match="credentials"):
        store.create("name", b"data")
