"""A private S3 server that only the environment, or a profile, names: every job uses it, and no other server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bench.s3_server import ACCESS_KEY, HOST, OTHER_CREDENTIALS, SECRET_KEY, credentials
from stratalog import Cluster
from stratalog.partitions.store import s3_connection, s3_session
from stratalog.tiering.delta_options import storage_options
from stratalog.tiering.iceberg_table import iceberg_properties
from tests.ports import ports_of
from tests.s3_server import S3Endpoint
from tests.unit.cluster_harness import TIERED
from tests.unit.harness import batch

pytestmark = pytest.mark.s3

SERVICES = """
[profile lake]
region = {region}
services = private
endpoint_url = {elsewhere}

[services private]
s3 =
  endpoint_url = {url}
"""


class Elsewhere:
    """A stand-in for every other server: it answers no request, and counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        self.came = 0
        threading.Thread(target=self._turn_away, daemon=True).start()

    def _turn_away(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.came += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """The proxy for all clients that use another server than this machine's."""
    server = Elsewhere()
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, server.url)
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, HOST)
    yield server
    server.close()


@pytest.fixture(params=["AWS_ENDPOINT_URL_S3", "AWS_PROFILE"])
def private(
    request: pytest.FixtureRequest,
    s3_endpoint: S3Endpoint,
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[S3Endpoint]:
    """The server, named in one way."""
    for variable in OTHER_CREDENTIALS:
        monkeypatch.delenv(variable, raising=False)
    if request.param == "AWS_ENDPOINT_URL_S3":
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", elsewhere.url)
    else:
        for variable in credentials():
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        names = {"region": s3_endpoint.region, "url": s3_endpoint.url, "elsewhere": elsewhere.url}
        (tmp_path / "config").write_text(SERVICES.format(**names))
        keys = f"[lake]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        (tmp_path / "credentials").write_text(keys)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "lake")
    s3_connection._forget_clients()  # as in a separate process
    s3_session._session.cache_clear()
    yield s3_endpoint
    s3_connection._forget_clients()
    s3_session._session.cache_clear()


def catalog(warehouse: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The option for pyiceberg, if installed; its catalog gets no server."""
    try:
        import sqlalchemy  # noqa: F401 - an extra of it
        from pyiceberg import catalog as catalogs
        from pyiceberg.utils.config import Config
    except ModuleNotFoundError:
        return False
    found = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": warehouse}
    for name, value in found.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    return True


@pytest.mark.sample(1)
@pytest.mark.long("appends, tiers, verifies, heals and reads on a server, by all clients")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # pyiceberg leaves connections to SQLite open
def test_all_jobs_go_to_the_server_that_one_thing_names(
    private: S3Endpoint,
    elsewhere: Elsewhere,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = f"s3://{private.bucket}/{tmp_path.name}"
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'[cluster]\nid = "c"\nremote = "{folder}/tier"\nvoters = [1]\n'
        f'[[brokers]]\nid = 1\nlog_dir = "{folder}/b1"\n[[brokers]]\nid = 2\nlog_dir = "{folder}/b2"\n'
    )
    listed = catalog(f"{folder}/warehouse", tmp_path, monkeypatch)
    cluster = Cluster.format(file)
    assert cluster.file.remote_storage.endpoint_url == private.url
    configs = TIERED | ({"remote.iceberg.table": "lake.flights.trips"} if listed else {})
    cluster.topics.create("t", partitions=1, replication_factor=2, configs=configs)
    for value in ("a", "b"):
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    cluster.replicate().raise_for_failures()
    assert cluster.tier().raise_for_failures().totals["uploaded_files"] == 2
    cluster.append_batches("t", {0: [batch(["c"])]}).raise_for_failures()
    cluster.replicate().raise_for_failures()
    assert cluster.verify(deep=True).raise_for_failures().ok
    store = cluster.stores[2]
    lost = [each.name for each in store.list("") if each.name.endswith(".parquet")]
    assert lost
    store.delete(lost[-1:])
    cluster.heal().raise_for_failures()
    assert cluster.verify(deep=True).raise_for_failures().ok

    table = ports_of(cluster).storage.remote_table(cluster.image.topic("t"))
    options = cluster.file.remote_storage
    found = DeltaTable(table.uri, storage_options=storage_options(table.uri, options))
    assert sorted(found.to_pyarrow_table()["value"].to_pylist()) == [b"a", b"b"]
    if listed:
        from pyiceberg.catalog import load_catalog

        theirs = load_catalog("lake", **iceberg_properties(table.uri, options)).load_table("flights.trips")
        assert sorted(theirs.scan().to_arrow()["value"].to_pylist()) == [b"a", b"b"]
    assert elsewhere.came == 0
