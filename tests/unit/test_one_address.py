"""One address for all clients: however a server is named, each client's options have the same address. No server
runs.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.jobs.hadoop import abfs_settings, gcs_settings, s3a_settings
from stratalog.partitions.errors import InvalidCallError, StorageAuthenticationError, UnsupportedStoreError
from stratalog.partitions.store import StoreOptions, s3_session
from stratalog.partitions.store.reached import Reached
from stratalog.partitions.store.resolving import resolved
from stratalog.partitions.store.s3_connection import client_of
from stratalog.tiering.delta_options import delta_storage_options, storage_options
from stratalog.tiering.iceberg_table import properties_of

PRIVATE = "https://s3.example.org:9000"
HTTP = "http://127.0.0.1:9000"
ELSEWHERE = "https://elsewhere.example.org"
SECRET = "hunter2"
KEYS = {"access_key": "KEYID7", "secret_key": SECRET}
AZURE_KEY = base64.b64encode(b"a key").decode()
BLOBS = "http://127.0.0.1:10000/lake"
OBJECTS = "http://127.0.0.1:4443"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment without a server, account or profile."""
    for variable in list(os.environ):
        if variable.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    s3_session._session.cache_clear()
    yield
    s3_session._session.cache_clear()


@dataclass(frozen=True)
class Way:
    """A way to name a server."""

    file: str = ""
    """Tables of the cluster file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    """The configuration file of the AWS SDK."""


SERVICES = (
    "[profile lake]\nservices = s\nregion = eu\nendpoint_url = {elsewhere}\n"
    "[services s]\ns3 =\n  endpoint_url = {url}\n"
)
PROFILE = "[profile lake]\nendpoint_url = {url}\nregion = eu\n"


def ways_of_s3(url: str) -> dict[str, Way]:
    region = {"AWS_DEFAULT_REGION": "eu"}
    services = SERVICES.format(url=url, elsewhere=ELSEWHERE)
    return {
        "file": Way(f'[s3]\nendpoint_url = "{url}"\nregion = "eu"\n', {"AWS_ENDPOINT_URL_S3": ELSEWHERE}),
        "AWS_ENDPOINT_URL_S3": Way("", region | {"AWS_ENDPOINT_URL_S3": url, "AWS_ENDPOINT_URL": ELSEWHERE}),
        "AWS_ENDPOINT_URL": Way("", {"AWS_ENDPOINT_URL": url, "AWS_REGION": "eu"}),
        "AWS_PROFILE": Way("", {"AWS_PROFILE": "lake"}, PROFILE.format(url=url)),
        "AWS_PROFILE, services": Way("", {"AWS_PROFILE": "lake"}, services),
        "profile of the file": Way('[s3]\nprofile = "lake"\n', {}, PROFILE.format(url=url)),
        "profile of the file, services": Way('[s3]\nprofile = "lake"\n', {}, services),
    }


def options_of(way: Way, root: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StoreOptions:
    """The options of a cluster file with this root, if the way names the server. The environment then names other
    servers, as an executor's may.
    """
    for variable, value in way.environment.items():
        monkeypatch.setenv(variable, value)
    (folder / "config").write_text(way.config)
    file = folder / "cluster.toml"
    file.write_text(f"[cluster]\nid = 'c'\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = '{root}'\n{way.file}")
    found = load_cluster_file(file).brokers[0].storage
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(variable, ELSEWHERE)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "elsewhere")
    return resolved(root, pickle.loads(pickle.dumps(found)))  # as an executor receives it


# ---------------------------------------------------------------------------------------------------- S3


def to_s3(options: StoreOptions) -> Reached:
    return Reached("s3", options.endpoint_url or "", options, KEYS)


def botocore_gets(options: StoreOptions) -> tuple[str, str, bool]:
    client = client_of(options)
    return client.meta.endpoint_url, client.meta.region_name, client.meta.config.s3["addressing_style"] == "path"


def delta_gets(options: StoreOptions) -> tuple[str, str, bool]:
    found = delta_storage_options(to_s3(options))
    assert found["AWS_ENDPOINT_URL"] == found["AWS_ENDPOINT_URL_S3"]
    assert found["AWS_ALLOW_HTTP"] == ("true" if found["AWS_ENDPOINT_URL"].startswith("http:") else "false")
    return found["AWS_ENDPOINT_URL"], found["AWS_REGION"], found["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == "false"


def spark_gets(options: StoreOptions) -> tuple[str, str, bool]:
    found = {
        name.removeprefix("fs.s3a.bucket.b."): value
        for name, value in s3a_settings("b", options, {}, "4.2.0").items()
    }
    return found["endpoint"], found["endpoint.region"], found["path.style.access"] == "true"


def pyiceberg_gets(options: StoreOptions) -> tuple[str, str, bool]:
    found = properties_of(to_s3(options))
    return found["s3.endpoint"], found["s3.region"], found["s3.force-virtual-addressing"] == "false"


S3_CLIENTS: dict[str, Callable[[StoreOptions], tuple[str, str, bool]]] = {
    "brokers": botocore_gets,
    "delta-rs": delta_gets,
    "Spark": spark_gets,
    "pyiceberg": pyiceberg_gets,
}


@pytest.mark.parametrize("client", S3_CLIENTS)
@pytest.mark.parametrize("way", ways_of_s3(""))
@pytest.mark.parametrize("url", [PRIVATE, HTTP])
def test_all_clients_of_s3_use_one_address(
    url: str, way: str, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "profile of the file" in way and client == "brokers":
        (tmp_path / "credentials").write_text("[lake]\n")
    options = options_of(ways_of_s3(url)[way], "s3://b/x", tmp_path, monkeypatch)
    assert S3_CLIENTS[client](options) == (url, "eu", True)


def test_credentials_of_s3_go_to_each_that_takes_them() -> None:
    options = resolved("s3://b", StoreOptions(PRIVATE))
    for token in ({}, {"token": "a-token"}):
        here = Reached("s3", PRIVATE, options, {**KEYS, **token})
        found = delta_storage_options(here)
        assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) == ("KEYID7", SECRET)
        assert found.get("AWS_SESSION_TOKEN") == token.get("token")
        properties = properties_of(here)
        assert (properties["s3.access-key-id"], properties["s3.secret-access-key"]) == ("KEYID7", SECRET)
        assert properties.get("s3.session-token") == token.get("token")
        assert SECRET not in repr(here)


@pytest.mark.parametrize("way", ["AWS_ENDPOINT_URL_S3", "AWS_PROFILE, services"])
def test_configured_endpoints_may_be_ignored(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "TRUE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEYID7")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    options = options_of(ways_of_s3(PRIVATE)[way], "s3://b/x", tmp_path, monkeypatch)
    assert (options.endpoint_url, options.region) == (None, "eu")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    here = resolved("s3://b", StoreOptions(region="eu-west-1"))
    amazon = "https://s3.eu-west-1.amazonaws.com"
    assert botocore_gets(here) == (amazon, "eu-west-1", False)
    found = storage_options("s3://b/t", here)
    assert (found["AWS_ENDPOINT_URL"], found["AWS_ENDPOINT_URL_S3"], found["AWS_ALLOW_HTTP"]) == (
        amazon,
        amazon,
        "false",
    )
    assert s3a_settings("b", here, {}, "4.2.0") == {"fs.s3a.bucket.b.endpoint.region": "eu-west-1"}


@pytest.mark.parametrize("way", [*ways_of_s3(""), "nothing", "ignored"])
def test_the_order_is_botocores(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ways_of_s3(PRIVATE) | {"nothing": Way(), "ignored": Way("", {"AWS_ENDPOINT_URL": PRIVATE})}
    for variable, value in named[way].environment.items():
        monkeypatch.setenv(variable, value)
    if way == "ignored":
        monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    (tmp_path / "config").write_text(named[way].config)
    profile = "lake" if 'profile = "lake"' in named[way].file else None
    theirs = botocore.session.Session(profile=profile).create_client("s3").meta.endpoint_url
    ours = resolved("s3://b", StoreOptions(profile=profile)).endpoint_url
    assert (ours or "https://s3.eu-west-1.amazonaws.com") == theirs


def test_a_private_server_is_not_amazons(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint, however it is named, decides whether uploads are completed exclusively, and whether policies
    may name Amazon's conditions.
    """
    from stratalog.partitions.store.s3 import S3Store

    assert S3Store("s3://b")._complete_exclusively
    monkeypatch.setenv("AWS_ENDPOINT_URL", PRIVATE)
    assert not S3Store("s3://b")._complete_exclusively
    assert S3Store("s3://b").options.region == "us-east-1"


# ------------------------------------------------------------------------------------------------- Azure


def of_account(secret: str = f"AccountKey={AZURE_KEY}", url: str = BLOBS, account: str = "lake") -> str:
    return f"DefaultEndpointsProtocol=http;AccountName={account};{secret};BlobEndpoint={url};"


AZURE_WAYS: dict[str, tuple[Way, str]] = {
    "file": (
        Way(f'[azure]\nendpoint_url = "{BLOBS}"\naccount = "lake"\n', {"AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}),
        BLOBS,
    ),
    "file, and the key of a connection string": (
        Way(
            f'[azure]\nendpoint_url = "{BLOBS}"\n',
            {"AZURE_STORAGE_CONNECTION_STRING": of_account(url="http://127.0.0.1:1/lake")},
        ),
        BLOBS,
    ),
    "AZURE_STORAGE_CONNECTION_STRING": (Way("", {"AZURE_STORAGE_CONNECTION_STRING": of_account()}), BLOBS),
    "AZURE_STORAGE_CONNECTION_STRING, suffix": (
        Way(
            "",
            {
                "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=lake;AccountKey={AZURE_KEY};"
                "EndpointSuffix=core.chinacloudapi.cn"
            },
        ),
        "https://lake.blob.core.chinacloudapi.cn",
    ),
    "AZURE_STORAGE_ACCOUNT_NAME": (
        Way("", {"AZURE_STORAGE_ACCOUNT_NAME": "lake", "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}),
        "https://lake.blob.core.windows.net",
    ),
}
HOST = "lake.dfs.core.windows.net"


def adlfs_gets(options: StoreOptions) -> tuple[str, str]:
    pytest.importorskip("adlfs")
    from stratalog.partitions.store.object_azure import AzureSession

    session = AzureSession("c", options)
    assert session.shown() == {"account_key": AZURE_KEY}
    return session.server, str(session.fs.service_client.account_name)


def to_azure(options: StoreOptions) -> Reached:
    return Reached("az", options.endpoint_url or "", options, {"account_key": AZURE_KEY})


def delta_told_of_azure(options: StoreOptions) -> tuple[str, str]:
    found = delta_storage_options(to_azure(options))
    assert found["azure_storage_account_key"] == AZURE_KEY
    assert found["azure_allow_http"] == (
        "true" if found["azure_storage_endpoint"].startswith("http:") else "false"
    )
    assert found["azure_storage_use_emulator"] == "false"
    return found["azure_storage_endpoint"], found["azure_storage_account_name"]


def spark_told_of_azure(options: StoreOptions) -> tuple[str, str]:
    found = abfs_settings(HOST, options, os.environ)
    assert AZURE_KEY not in str(found)
    assert found[f"fs.azure.account.keyprovider.{HOST}"].endswith("ShellDecryptionKeyProvider")
    if "fs.azure.abfs.endpoint" not in found:
        return "https://lake.blob.core.windows.net", str(options.account)  # the server of the address
    scheme = "https" if found["fs.azure.always.use.https"] == "true" else "http"
    path = "/lake" if scheme == "http" else ""  # Hadoop adds the account to the path
    return f"{scheme}://{found['fs.azure.abfs.endpoint']}{path}", str(options.account)


def pyiceberg_told_of_azure(options: StoreOptions) -> tuple[str, str]:
    found = properties_of(to_azure(options))
    server = f"{found['adls.blob-storage-scheme']}://{found['adls.account-host']}"
    assert found["adls.connection-string"] == f"BlobEndpoint={server};AccountName=lake;AccountKey={AZURE_KEY}"
    return server, found["adls.account-name"]


AZURE_CLIENTS: dict[str, Callable[[StoreOptions], tuple[str, str]]] = {
    "brokers": adlfs_gets,
    "delta-rs": delta_told_of_azure,
    "Spark": spark_told_of_azure,
    "pyiceberg": pyiceberg_told_of_azure,
}


@pytest.mark.parametrize("client", AZURE_CLIENTS)
@pytest.mark.parametrize("way", AZURE_WAYS)
@pytest.mark.parametrize("root", ["az://c/x", f"abfss://c@{HOST}/x"])
def test_all_clients_of_azure_use_one_address(
    root: str, way: str, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, server = AZURE_WAYS[way]
    if root.startswith("abfss") and "account = " in named.file:
        named = Way(named.file.replace('account = "lake"\n', ""), named.environment)
    options = options_of(named, root, tmp_path, monkeypatch)
    if root.startswith("abfss") and "suffix" in way:
        server = "https://lake.blob.core.windows.net"  # the domain of the address
    assert AZURE_CLIENTS[client](options) == (server, "lake")


def test_azures_emulator_by_its_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    found = resolved("az://c/x", StoreOptions())
    assert (found.account, found.endpoint_url) == ("devstoreaccount1", "http://127.0.0.1:10000/devstoreaccount1")
    pytest.importorskip("adlfs")
    from stratalog.partitions.store.object_azure import AzureSession

    session = AzureSession("c", found)
    assert (session.server, list(session.shown())) == (found.endpoint_url, ["account_key"])


@pytest.mark.parametrize(
    ("options", "root"),
    [(StoreOptions(account="other"), "az://c/x"), (StoreOptions(), "abfss://c@other.dfs.core.windows.net/x")],
)
def test_two_accounts_are_one_too_many(options: StoreOptions, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", of_account())
    with pytest.raises(UnsupportedStoreError, match=r"account is other, but AZURE_STORAGE_CONN.* names lake:"):
        resolved(root, options)


# ------------------------------------------------------------------------------------------------- Google

GOOGLE_WAYS: dict[str, Way] = {
    "file": Way(f'[gcs]\nendpoint_url = "{OBJECTS}"\n', {"STORAGE_EMULATOR_HOST": ELSEWHERE}),
    "STORAGE_EMULATOR_HOST": Way("", {"STORAGE_EMULATOR_HOST": OBJECTS}),
    "STORAGE_EMULATOR_HOST without its scheme": Way(
        "", {"STORAGE_EMULATOR_HOST": OBJECTS.removeprefix("http://")}
    ),
}


def gcsfs_gets(options: StoreOptions) -> str:
    pytest.importorskip("gcsfs")
    from stratalog.partitions.store.object_gcs import GcsSession

    session = GcsSession("b", options)
    assert session.shown() == {}
    assert session.fs._location == session.server
    return session.server


def to_google(options: StoreOptions, shown: Mapping[str, str]) -> Reached:
    return Reached("gs", options.endpoint_url or "https://storage.googleapis.com", options, shown)


def delta_told_of_google(options: StoreOptions) -> str:
    found = delta_storage_options(to_google(options, {}))
    assert found["google_allow_http"] == "true"
    assert "disable_oauth" in found["google_service_account_key"]
    return found["google_base_url"]


def spark_told_of_google(options: StoreOptions) -> str:
    found = gcs_settings(options, {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json"})
    assert found["fs.gs.auth.null.enable"] == "true"
    return found["fs.gs.storage.root.url"].rstrip("/")


def pyiceberg_told_of_google(options: StoreOptions) -> str:
    found = properties_of(to_google(options, {}))
    assert found["gcs.oauth2.token"] == "anonymous"
    return found["gcs.service.host"]


GOOGLE_CLIENTS: dict[str, Callable[[StoreOptions], str]] = {
    "brokers": gcsfs_gets,
    "delta-rs": delta_told_of_google,
    "Spark": spark_told_of_google,
    "pyiceberg": pyiceberg_told_of_google,
}


@pytest.mark.parametrize("client", GOOGLE_CLIENTS)
@pytest.mark.parametrize("way", GOOGLE_WAYS)
def test_all_clients_of_google_use_one_address(
    way: str, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(GOOGLE_WAYS[way], "gs://b/x", tmp_path, monkeypatch)
    assert GOOGLE_CLIENTS[client](options) == OBJECTS


def test_googles_own_server_has_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "example.org")
    options = resolved("gs://b", StoreOptions())
    assert options.endpoint_url == "https://storage.example.org"
    found = delta_storage_options(to_google(options, {"application_credentials": "/etc/key.json"}))
    assert found["google_application_credentials"] == "/etc/key.json"
    assert (found["google_base_url"], found["google_allow_http"]) == ("https://storage.example.org", "false")
    account = {"service_account": '{"private_key": "x"}', "token": "a-token"}
    found = delta_storage_options(to_google(options, account))
    assert found["google_service_account_key"] == '{"private_key": "x"}'
    assert "a-token" not in found.values()
    assert properties_of(to_google(options, account))["gcs.oauth2.token"] == "a-token"
    found = gcs_settings(options, {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json"})
    assert found["fs.gs.auth.service.account.json.keyfile"] == "/etc/key.json"
    with pytest.raises(StorageAuthenticationError, match="delta-rs"):
        delta_storage_options(to_google(options, {"token": SECRET}))


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("root", "environment", "message"),
    [
        ("s3://b/x", {"AWS_ENDPOINT_URL": "http://10.0.0.7:9000"}, "http://10.0.0.7 is not encrypted"),
        ("s3://b/x", {"AWS_ENDPOINT_URL_S3": f"https://k:{SECRET}@host"}, "AWS_ENDPOINT_URL_S3: this address"),
        ("s3://b/x", {"AWS_PROFILE": "lake"}, "names the services section 's', which is missing"),
        (
            "az://c/x",
            {"AZURE_STORAGE_CONNECTION_STRING": of_account(url="http://10.0.0.7/lake")},
            "http://10.0.0.7 is not encrypted",
        ),
        (
            "az://c/x",
            {"AZURE_STORAGE_CONNECTION_STRING": of_account(url=f"https://host/lake?sig={SECRET}")},
            "BlobEndpoint of AZURE_STORAGE_CONNECTION_STRING: this address",
        ),
        ("az://c/x", {"AZURE_STORAGE_CONNECTION_STRING": SECRET}, "cannot be read: write it as NAME=VALUE"),
        ("gs://b/x", {"STORAGE_EMULATOR_HOST": "10.0.0.7:4443"}, "http://10.0.0.7 is not encrypted"),
        ("gs://b/x", {"STORAGE_EMULATOR_HOST": f"k:{SECRET}@host"}, "STORAGE_EMULATOR_HOST: this address"),
    ],
)
def test_bad_settings_of_the_environment_are_refused_when_the_file_is_read(
    root: str, environment: Mapping[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way("", environment, "[profile lake]\nservices = s\n")
    with pytest.raises(InvalidCallError, match=message) as caught:
        options_of(way, root, tmp_path, monkeypatch)
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_profile_that_is_missing_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have the file: requests report that it is missing."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", PRIVATE)
    assert resolved("s3://b", StoreOptions(profile="nobody")).endpoint_url == PRIVATE


@pytest.mark.parametrize(
    ("here", "variable"),
    [
        (Reached("s3", PRIVATE, StoreOptions(), KEYS), "AWS_SESSION_TOKEN"),
        (Reached("az", BLOBS, StoreOptions(account="lake"), {"sas_token": "sv=1"}), "AZURE_STORAGE_ACCOUNT_KEY"),
        (Reached("gs", OBJECTS, StoreOptions(), {}), "GOOGLE_SERVICE_ACCOUNT"),
    ],
)
def test_credentials_that_delta_would_mix_are_refused(
    here: Reached, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(uri: str, options: StoreOptions) -> Reached:
        return here

    monkeypatch.setattr("stratalog.tiering.delta_options.reached", known)
    assert storage_options(f"{here.scheme}://b/t", here.options)
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(UnsupportedStoreError, match=f"^{variable} is set") as caught:
        storage_options(f"{here.scheme}://b/t", here.options)
    assert SECRET not in str(caught.value)


def test_without_credentials_delta_is_not_started(tmp_path: Path) -> None:
    """The client would look for the credentials of an instance, or of another profile."""
    with pytest.raises(StorageAuthenticationError, match="find credentials for s3://b: no credentials were found"):
        storage_options("s3://b/t", StoreOptions(PRIVATE, retries=0))


def test_a_protocol_is_spelt_in_one_way() -> None:
    """The endpoint decides whether credentials are shown."""
    assert resolved("gs://b", StoreOptions("HTTP://127.0.0.1:1")).endpoint_url == "http://127.0.0.1:1"


def test_a_folder_names_nothing(tmp_path: Path) -> None:
    options: Any = StoreOptions()
    assert resolved(f"file://{tmp_path}", options) is options
    assert storage_options(str(tmp_path), options) == {}
