"""Azure and Google without environment variables: endpoints from the cluster file, credentials from a provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bench.cloud_servers import ACCOUNT, ACCOUNT_KEY, BUCKET, OTHER_SETTINGS
from stratalog import Cluster
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    StorageAuthenticationError,
    StorageAuthorizationError,
    UnsupportedStoreError,
)
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store import credentials as providers
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider, NoCredentialsFoundError
from stratalog.tiering.delta_options import storage_options
from tests.cloud_servers import CloudEndpoint
from tests.s3_server import S3Endpoint
from tests.unit.harness import batch

pytestmark = [pytest.mark.s3, pytest.mark.nightly]

EXPIRES = {"expiration": "2023-11-14T23:13:20+00:00"}
"""An hour after the clock of these tests begins."""


def account_key(root: str) -> Mapping[str, Any]:
    assert root.startswith("az://")
    return {"account_key": ACCOUNT_KEY}


def signature() -> str:
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    kinds = ResourceTypes(service=True, container=True, object=True)
    rights = AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True)
    return str(generate_account_sas(ACCOUNT, ACCOUNT_KEY, kinds, rights, datetime.now(UTC) + timedelta(hours=1)))  # noqa: TID251


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in OTHER_SETTINGS:
        monkeypatch.delenv(variable, raising=False)


Opens = Callable[..., Store]


@pytest.fixture
def on_azure(azure_endpoint: CloudEndpoint, silent: None, tmp_path: Path) -> Opens:
    def opened(provider: Callable[[str], Mapping[str, Any]]) -> Store:
        root = f"az://{BUCKET}/{tmp_path.name}"
        source = CredentialSource(GivenProvider(f"{tmp_path.name}-{id(provider)}", provider), root)
        return open_store(root, StoreOptions(azure_endpoint.url, account=ACCOUNT, retries=0, credentials=source))

    return opened


def test_a_provider_may_replace_an_account_key_by_a_signature(
    on_azure: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections are renewed with the latest credentials, and Delta's writer gets the same."""
    clock = ManualClock(1_700_000_000_000)
    monkeypatch.setattr(providers, "_CLOCK", clock)
    token = signature()
    answers = [{"account_key": ACCOUNT_KEY, **EXPIRES}, {"sas_token": token}]
    store = on_azure(lambda _: answers.pop(0))
    assert store.create("name", b"data")
    options = store.options  # type: ignore[attr-defined]
    assert storage_options(store.uri, options)["azure_storage_account_key"] == ACCOUNT_KEY
    clock.sleep(3_300)
    assert store.read("name") == b"data"
    shown = storage_options(store.uri, options)
    assert "azure_storage_account_key" not in shown
    assert "sig=" in shown["azure_storage_sas_token"]
    store.delete(["name"])
    assert (list(store.list("")), answers) == ([], [])


def test_a_wrong_key_is_one_sentence_without_it(on_azure: Opens) -> None:
    wrong = "bm90LXRoZS1rZXktYXQtYWxs"
    store = on_azure(lambda _: {"account_key": wrong})
    with pytest.raises(StorageAuthorizationError, match=r"create az://.*/name: 403") as caught:
        store.create("name", b"data")
    assert wrong not in str(caught.value)


def test_a_provider_that_gives_nothing_of_use_is_named(on_azure: Opens) -> None:
    store = on_azure(lambda _: {"access_key": "hunter2"})
    with pytest.raises(
        StorageAuthenticationError, match=r"provider .* gave no account_key, or sas_token"
    ) as caught:
        store.create("name", b"data")
    assert "hunter2" not in str(caught.value)


def test_a_token_and_a_connection_string_are_one_too_many(
    on_azure: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY}")
    with pytest.raises(UnsupportedStoreError, match="remove one of them"):
        on_azure(lambda _: {"token": "hunter2"}).read("name")


def test_google_takes_a_token_and_delta_a_service_account(silent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratalog.partitions.store.object_gcs import _token

    def options(values: Mapping[str, Any]) -> StoreOptions:
        source = CredentialSource(GivenProvider(str(sorted(values)), lambda _: values), "gs://b")
        return StoreOptions(credentials=source, retries=0)

    headers: dict[str, str] = {}
    _token(options({"token": "a-token"})).apply(headers)
    assert headers["authorization"] == "Bearer a-token"
    assert _token(options({"service_account": '{"client_email": "a@b"}'})) == {"client_email": "a@b"}
    with pytest.raises(StorageAuthenticationError, match="gave only a token, but delta-rs") as caught:
        storage_options("gs://b/t", options({"token": "a-token"}))
    assert "a-token" not in str(caught.value)


@pytest.mark.long("works on three servers")
@pytest.mark.slow
def test_one_cluster_works_on_three_clouds(
    silent: None,
    azure_endpoint: CloudEndpoint,
    gcs_endpoint: CloudEndpoint,
    s3_endpoint: S3Endpoint,
    tmp_path: Path,
) -> None:
    """A folder, Azure, Google and S3: append to one, replicate to all, tier, verify, read."""
    name = tmp_path.name
    (tmp_path / "b1").mkdir()
    file = tmp_path / "cluster.toml"
    roots = ("b1", f"az://{BUCKET}/{name}", f"gs://{BUCKET}/{name}", f"s3a://{s3_endpoint.bucket}/{name}/b4")
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "{root}"\n' for n, root in enumerate(roots, start=1))
    file.write_text(
        f'[cluster]\nid = "c"\nremote = "s3://{s3_endpoint.bucket}/{name}/tier"\nvoters = [1, 2, 3]\n{brokers}'
        f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\n'
        f'[azure]\nendpoint_url = "{azure_endpoint.url}"\naccount = "{ACCOUNT}"\n'
        f'credentials = "{__name__}:account_key"\n[gcs]\nendpoint_url = "{gcs_endpoint.url}"\ntimeout_s = 10\n'
    )
    cluster = Cluster.format(file)
    configs = {"remote.storage.enable": "true", "segment.bytes": "1", "local.retention.bytes": "0"}
    cluster.topics.create("t", partitions=1, replication_factor=4, configs=configs | {"retention.ms": "-1"})
    for value in ("a", "b"):
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    again = Cluster.open(file)
    again.replicate().raise_for_failures()
    assert again.tier().raise_for_failures().totals["uploaded_files"] == 2
    assert again.verify(deep=True).raise_for_failures().ok
    assert again.fetch("t", 0, 0).records.column("value").to_pylist()[0] == b"a"
    for store in again.stores.values():
        assert [each.name for each in store.list("") if each.name.endswith(".parquet")]


def test_a_service_account_comes_with_its_token(silent: None) -> None:
    """delta-rs gets the account, and pyiceberg gets only the token."""
    import google.auth.exceptions

    from stratalog.partitions.store.object_gcs import GcsSession

    account = {"client_email": "a@b"}
    source = CredentialSource(GivenProvider("account", lambda _: {"service_account": account}), "gs://b")
    session = Mock(_source=source)
    session.fs.credentials.credentials.token = "a-token"
    assert GcsSession.shown(session) == {"service_account": '{"client_email": "a@b"}', "token": "a-token"}
    session.fs.credentials.maybe_refresh.side_effect = google.auth.exceptions.RefreshError("hunter2")
    with pytest.raises(NoCredentialsFoundError, match=r"could not be renewed \(RefreshError\)"):
        GcsSession.shown(session)
