"""A cluster without a disk: its file in a bucket, its roots on two servers, its credentials from a provider."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.s3_server import ACCESS_KEY, OTHER_CREDENTIALS, SECRET_KEY, credentials, running_server
from stratalog import Cluster
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.jobs.main import main
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, StorageAuthenticationError, StorageAuthorizationError
from stratalog.partitions.store import Store, StoreOptions, open_store, s3_connection
from stratalog.partitions.store import credentials as providers
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider, NamedProvider
from tests.s3_server import S3Endpoint
from tests.unit.harness import batch

pytestmark = pytest.mark.s3

WRONG = "not-the-secret-at-all"
RETIRED = "a-key-that-was-retired"
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "local.retention.bytes": "0",
}
GOOD = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}


def named(root: str) -> Mapping[str, Any]:
    """A provider that jobs import by its name."""
    return GOOD


@pytest.fixture
def nobody(s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Endpoint]:
    """A known server, and no credentials."""
    s3_connection._forget_clients()  # the cached clients have found credentials, or none
    for variable in (*credentials(), *OTHER_CREDENTIALS):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", s3_endpoint.region)
    yield s3_endpoint
    s3_connection._forget_clients()


def put_file(endpoint: S3Endpoint, folder: str, roots: Mapping[str, str], more: str = "") -> str:
    """Write a cluster file into a bucket and return its address, without credentials from the environment."""
    text = f'[cluster]\nid = "c"\nremote = "{roots["remote"]}"\nvoters = [1]\n'
    text += "".join(f'[[brokers]]\nid = {n}\nlog_dir = "{roots[n]}"\n' for n in sorted(roots) if n != "remote")
    text += f'[s3]\nendpoint_url = "{endpoint.url}"\nregion = "{endpoint.region}"\n{more}'
    source = CredentialSource(GivenProvider(folder, named), f"s3://{endpoint.bucket}")
    store = open_store(
        f"s3://{endpoint.bucket}/{folder}", StoreOptions(endpoint.url, endpoint.region, credentials=source)
    )
    assert store.create("cluster.toml", text.encode())
    return f"s3a://{endpoint.bucket}/{folder}/cluster.toml"


def life(cluster: Cluster, again: Cluster) -> None:
    """Append, replicate, tier, drop the tiered records, and read both tiers."""
    cluster.topics.create("t", partitions=1, replication_factor=2, configs=TIERED)
    for value in ("a", "b"):
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    again.replicate().raise_for_failures()
    assert again.tier().raise_for_failures().totals["uploaded_files"] == 2
    again.retain().raise_for_failures()
    again.append_batches("t", {0: [batch(["c"])]}).raise_for_failures()
    again.replicate().raise_for_failures()
    values: list[bytes] = []
    while len(values) < 3:
        values += again.fetch("t", 0, len(values)).records.column("value").to_pylist()
    assert values == [b"a", b"b", b"c"]
    again.verify(deep=True).raise_for_failures()


def test_a_cluster_file_in_a_bucket_may_name_roots_next_to_it_and_use_a_named_provider(
    nobody: S3Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = put_file(
        nobody, tmp_path.name, {"1": "broker-1", "2": "./broker-2/", "remote": "../" + tmp_path.name + "/tier"}
    )
    provider = f"{__name__}:named"
    assert main(["format", "--cluster", address, "--credentials", provider]) == 0
    assert SECRET_KEY not in "".join(capsys.readouterr())
    monkeypatch.setenv("STRATALOG_CREDENTIALS", provider)
    cluster = Cluster.open(address)
    folder = f"s3://{nobody.bucket}/{tmp_path.name}"
    assert list(cluster.file.roots) == [f"{folder}/broker-1", f"{folder}/broker-2", f"{folder}/tier"]
    assert cluster.file.path == f"{folder}/cluster.toml"
    life(cluster, Cluster.open(address))
    monkeypatch.delenv("STRATALOG_CREDENTIALS")
    assert main(["describe", "--cluster", address]) == 1
    text = capsys.readouterr().err
    assert text.startswith(
        f"ERROR SASL_AUTHENTICATION_FAILED: read s3://{nobody.bucket}/{tmp_path.name}/cluster.toml"
    )
    assert text.count("\n") == 1


def test_a_file_in_a_bucket_that_is_missing_or_names_code_is_refused(
    nobody: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidCallError, match=r"none\.toml cannot be read: no object has this name"):
        load_cluster_file(f"s3://{nobody.bucket}/{tmp_path.name}/none.toml", named)
    roots = {"1": "one", "remote": "tier"}
    address = put_file(nobody, tmp_path.name, roots, 'credentials = "os:getcwd"\n')
    for provider in (named, None):
        with pytest.raises(
            InvalidCallError, match="a cluster file in a bucket must not name a function to import"
        ):
            load_cluster_file(address, provider)
        monkeypatch.setenv("STRATALOG_CREDENTIALS", f"{__name__}:named")


@pytest.mark.nightly
def test_brokers_and_the_remote_tier_may_be_on_different_servers(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    """Each root has its own endpoint, and one has a provider; the other server does not have its bucket."""
    (tmp_path / "server").mkdir()
    bucket, lake = s3_endpoint.buckets
    with running_server(tmp_path / "server") as other:
        file = tmp_path / "cluster.toml"
        file.write_text(
            f"""
[cluster]
id = "c"
remote = "s3://{lake}/{tmp_path.name}/tier"
voters = [1]
[remote.storage]
endpoint_url = "{other.url}"
[[brokers]]
id = 1
log_dir = "broker-1"
[[brokers]]
id = 2
log_dir = "s3://{bucket}/{tmp_path.name}/broker-2"
[brokers.storage]
credentials = "{__name__}:named"
[s3]
endpoint_url = "{s3_endpoint.url}"
region = "{s3_endpoint.region}"
"""
        )
        (tmp_path / "broker-1").mkdir()
        cluster = Cluster.format(file)
        life(cluster, Cluster.open(file))
        there = open_store(f"s3://{bucket}/{tmp_path.name}", StoreOptions(s3_endpoint.url, "us-east-1"))
        tier = open_store(f"s3://{lake}/{tmp_path.name}/tier", StoreOptions(other.url, "us-east-1"))
        assert any(each.name.endswith(".parquet") for each in there.list("broker-2"))
        assert any(each.name.endswith(".parquet") for each in tier.list(""))
        nothing = open_store(f"s3://{lake}/{tmp_path.name}/tier", StoreOptions(s3_endpoint.url, "us-east-1"))
        assert list(nothing.list("")) == []
        elsewhere = StoreOptions(other.url, "us-east-1")
        assert list(open_store(f"s3://{bucket}/{tmp_path.name}", elsewhere).list("")) == []
        drilled = cluster.drill(deep=True).raise_for_failures()
        assert drilled.totals["lost_records"] == 1


class Answers:
    """A provider that gives these in turn, and then the last one."""

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self.left = list(answers)
        self.asked = 0

    def __call__(self, root: str) -> Mapping[str, Any]:
        self.asked += 1
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def store_by(provider: Answers, endpoint: S3Endpoint, folder: str) -> Store:
    root = f"s3://{endpoint.bucket}/{folder}"
    source = CredentialSource(GivenProvider(f"{folder}-{id(provider)}", provider), root)
    return open_store(root, StoreOptions(endpoint.url, endpoint.region, retries=0, credentials=source))


def test_keys_that_the_server_no_longer_accepts_are_requested_again(nobody: S3Endpoint, tmp_path: Path) -> None:
    """After a rotation the first credentials are refused, and the call continues with the next ones; only a
    refusal makes the provider return new ones.
    """
    provider = Answers({"access_key": RETIRED, "secret_key": SECRET_KEY}, GOOD)
    store = store_by(provider, nobody, tmp_path.name)
    assert store.create("name", b"data")
    assert (store.read("name"), provider.asked) == (b"data", 2)
    assert store.create("name", b"other") is False
    assert provider.asked == 2


def test_keys_that_expire_are_renewed_while_it_works(
    nobody: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_700_000_000_000)
    monkeypatch.setattr(providers, "_CLOCK", clock)
    first = GOOD | {"expiration": "2023-11-14T23:13:20+00:00"}  # an hour after the test's start
    provider = Answers(first, {"access_key": ACCESS_KEY, "secret_key": WRONG, "expiration": None}, GOOD)
    store = store_by(provider, nobody, tmp_path.name)
    assert store.create("name", b"data")
    clock.sleep(3_299)
    assert (store.read("name"), provider.asked) == (b"data", 1)
    clock.sleep(1)
    assert (store.read("name"), provider.asked) == (b"data", 3)  # the second credentials are wrong


WRONG_ONES = {
    "wrong": {"access_key": ACCESS_KEY, "secret_key": WRONG},
    "unknown": {"access_key": RETIRED, "secret_key": WRONG},
    "expired": GOOD | {"expiration": "2020-01-01T00:00:00Z"},
    "none": {},
}


@pytest.mark.parametrize("kind", WRONG_ONES)
def test_wrong_credentials_are_one_sentence_and_nothing_is_half_done(
    kind: str, nobody: S3Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stratalog")
    provider = Answers(WRONG_ONES[kind])
    store = store_by(provider, nobody, tmp_path.name)
    with pytest.raises(StorageAuthenticationError) as caught:
        store.create("name", b"data")
    text = str(caught.value)
    assert f"create s3://{nobody.bucket}/{tmp_path.name}/name" in text
    assert "the credential provider Answers" in text
    assert not [word for word in (WRONG, SECRET_KEY, RETIRED) if word in text + caplog.text]
    assert provider.asked <= 2
    assert list(store_by(Answers(GOOD), nobody, tmp_path.name).list("")) == []


def test_a_lost_right_is_another_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid keys whose owner has no rights."""
    with running_server(tmp_path, ["nobody"]) as server:
        provider = Answers({"access_key": "nobody", "secret_key": SECRET_KEY})
        store = store_by(provider, server, "x")
        with pytest.raises(StorageAuthorizationError, match=r"create .*/x/name.*s3:PutObject") as caught:
            store.create("name", b"data")
        assert caught.value.code == "CLUSTER_AUTHORIZATION_FAILED"


def test_nothing_secret_travels(nobody: S3Endpoint, tmp_path: Path) -> None:
    store = store_by(Answers(GOOD), nobody, tmp_path.name)
    assert store.create("name", b"data")
    named_only = open_store(
        store.uri,
        StoreOptions(nobody.url, credentials=CredentialSource(NamedProvider(f"{__name__}:named"), store.uri)),
    )
    assert named_only.read("name") == b"data"
    sent = pickle.dumps(named_only)
    assert SECRET_KEY.encode() not in sent
    arrived: Store = pickle.loads(sent)
    assert arrived.read("name") == b"data"
    assert SECRET_KEY not in repr(store) + repr(named_only.options)  # type: ignore[attr-defined]
