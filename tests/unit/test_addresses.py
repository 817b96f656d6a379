"""Addresses that contain a secret are refused wherever an address is accepted, and never repeated."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from stratalog import Cluster, StratalogError
from stratalog.bridges.export.kafka_target import open_target
from stratalog.bridges.export.options import ExportOptions
from stratalog.bridges.formats.registry import SchemaRegistry
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.page.report import StatePage
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.health.finding import HealthReport
from stratalog.jobs.main import main
from stratalog.jobs.otlp import OtlpPush
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.address import (
    parse_address,
    parse_brokers,
    parse_folder,
    parse_server,
    redacted,
)
from tests.unit.cluster_harness import LiveCluster

HOSTILE = [
    "s3://KEYID7:hunter2/with/slash@bucket/x",
    "s3://KEYID7:hunter2@bucket/x",
    "s3a://KEYID7:hunter2@bucket/x",
    "S3://KEYID7:hunter2@bucket/x",
    "s3:/KEYID7:hunter2@bucket/x",
    "s3://KEYID7@bucket/hunter2@x",
    "KEYID7:hunter2@bucket/x",
    "//KEYID7:hunter2@bucket/x",
    "./s3://KEYID7:hunter2@bucket/x",
    "s3://bucket/x#token=hunter2",
    "s3://bucket/x#hunter2",
    "s3://bucket/x;sig=hunter2",
    "s3://bucket/x&sig=hunter2",
    "s3://bucket/x/sig=hunter2",
    "s3://bucket/x?X-Amz-Signature=hunter2&X-Amz-Credential=KEYID7",
    "s3://bucket/x%3Ftoken%3Dhunter2",
    "s3://bucket/x\nhunter2",
    "gs://bucket/x?access_token=hunter2",
    "az://c/x&sv=2024-01-01&sig=hunter2",
    "az://acct;AccountKey=hunter2==/x",
    "abfss://KEYID7:hunter2@account.dfs.core.windows.net/x",
    "abfss://c@account.dfs.core.windows.net/x?sv=1&sig=hunter2",
    "memory://KEYID7:hunter2@name",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;EndpointSuffix=core.windows.net",
    "BlobEndpoint=https://a.example.org/;SharedAccessSignature=sv=1&sig=hunter2",
    "/lake/AccountName=a;AccountKey=hunter2",
    "/lake/x?sig=hunter2",
    "/lake/x#token=hunter2",
    "/lake/password=hunter2",
    "/lake/secret_access_key%3Dhunter2",
    "file:///lake/x?sig=hunter2",
    "file://KEYID7:hunter2@host/x",
    "https://KEYID7:hunter2/b@host",
    "https://KEYID7:hunter2@host",
    "https://hunter2@host/x",
    "https://account.blob.example.org/b1?sig=hunter2",
    "https://host/x;token=hunter2",
    "https://host/x#hunter2",
    "http://KEYID7:hunter2@169.254.169.254/",
    "jdbc:postgresql://host/db?password=hunter2",
    "hunter2://x",
]

FILE = """
[cluster]
id = "c"
voters = [1]
{cluster}
[[brokers]]
id = 1
log_dir = {log_dir}
{storage}
"""


def cluster_file(folder: Path, cluster: str = "", log_dir: str = "'one'", storage: str = "") -> Path:
    path = folder / "cluster.toml"
    path.write_text(FILE.format(cluster=cluster, log_dir=log_dir, storage=storage))
    return path


def toml(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'


def on_command_line(*arguments: str) -> None:
    """Capture the output of the command line. A successful command returns 0."""
    if main(list(arguments)) == 0:
        pytest.fail("taken")
    raise UnsupportedStoreError("refused")


def saved(folder: Path, address: str) -> None:
    StatePage("", Mock(HealthReport), load_cluster_file(cluster_file(folder))).save(address)


def recovered(folder: Path, address: str) -> None:
    place = folder.parent / "live"
    if not place.exists():
        place.mkdir()
        LiveCluster(place, 1, on_disk=True)
    Cluster.open(place / "cluster.toml").recover("t", address)


def by_environment(variable: str, address: str, act: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, address)
        act()


Place = Callable[[Path, str], object]
PLACES: dict[str, Place] = {
    "log_dir": lambda f, a: load_cluster_file(cluster_file(f, log_dir=toml(a))),
    "remote": lambda f, a: load_cluster_file(cluster_file(f, f"remote = {toml(a)}")),
    "cache": lambda f, a: load_cluster_file(cluster_file(f, f"cache = {toml(a)}")),
    **{
        kind: lambda f, a, kind=kind: load_cluster_file(  # type: ignore[misc]
            cluster_file(f, storage=f"[{kind}]\nendpoint_url = {toml(a)}\n")
        )
        for kind in ("s3", "azure", "gcs")
    },
    "brokers.storage": lambda f, a: load_cluster_file(
        cluster_file(f, "", "'s3://b/x'", f"[brokers.storage]\nendpoint_url = {toml(a)}\n")
    ),
    "remote.storage": lambda f, a: load_cluster_file(
        cluster_file(f, "remote = 's3://b/x'", storage=f"[remote.storage]\nendpoint_url = {toml(a)}\n")
    ),
    "Cluster.open": lambda f, a: Cluster.open(a),
    "--cluster": lambda f, a: on_command_line("describe", "--cluster", a),
    "check_store": lambda f, a: on_command_line("check_store", a),
    "check_store --endpoint-url": lambda f, a: on_command_line(
        "check_store", "s3://b/x", "--region", "r", "--endpoint-url", a
    ),
    "open_store": lambda f, a: open_store(a),
    "StoreOptions": lambda f, a: StoreOptions(a),
    "report": saved,
    "recover": recovered,
    "the map of an export": lambda f, a: ExportOptions(keep=False, offset_map=a),
    "the registry": lambda f, a: SchemaRegistry({"schema.registry.url": a}),
    "mirror": lambda f, a: open_source(a),
    "export": lambda f, a: open_target(a, {}, SystemClock()),
    "--otlp": lambda f, a: OtlpPush(Mock(), SystemClock(), a),
    "AWS_ENDPOINT_URL_S3": lambda f, a: by_environment(
        "AWS_ENDPOINT_URL_S3", a, lambda: open_store("s3://b/x", StoreOptions(region="r"))
    ),
    "STORAGE_EMULATOR_HOST": lambda f, a: by_environment(
        "STORAGE_EMULATOR_HOST", a, lambda: open_store("gs://b/x")
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_address_with_a_secret_is_refused_and_not_repeated(
    tmp_path: Path,
    place: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error, its causes and context, the log and the terminal do not contain it; and no folder has its
    name."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG, "stratalog")
    for number, address in enumerate(HOSTILE):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(StratalogError) as caught:
            PLACES[place](folder, address)
        error: BaseException | None = caught.value
        text = "".join(traceback.format_exception(caught.value, chain=True))
        while error is not None:
            text += f"{error} {error!r} {error.args}"
            error = error.__cause__ or error.__context__
        text += caplog.text + "".join(capsys.readouterr())
        assert "is refused, and not repeated here" in text or "is no address of a server" in text, address
        for secret in ("hunter2", "keyid7"):
            assert secret not in text.lower(), f"{address!r} at {place}"
    assert not [path for path in tmp_path.rglob("*") if "hunter2" in path.name]


def test_every_place_says_which_it_is(tmp_path: Path) -> None:
    for place, words in {
        "log_dir": r"cluster\.toml, brokers\[0\]\.log_dir: this address \(s3:\.\.\.\) is refused",
        "remote": r"cluster\.toml, cluster\.remote: this address \(s3:\.\.\.\)",
        "cache": r"cluster\.toml, cluster\.cache: this address \(s3:\.\.\.\)",
        "brokers.storage": r"cluster\.toml, brokers\[0\]\.storage: endpoint_url: this address",
        "Cluster.open": r"the cluster file: this address \(s3:\.\.\.\)",
        "report": "the place of the page: this address",
        "the registry": r"schema\.registry\.url: this address",
    }.items():
        with pytest.raises(StratalogError, match=words):
            PLACES[place](tmp_path, "s3://KEYID7:hunter2@bucket/x")


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        ("/lake/my data/übung/flüge.2024-01", "/lake/my data/übung/flüge.2024-01"),
        ("./a:b/c", "./a:b/c"),
        ("../brokers/1", "../brokers/1"),
        ("/mnt/12:30/x", "/mnt/12:30/x"),
        ("/lake/me@home/dt=2024-01-01", "/lake/me@home/dt=2024-01-01"),
        ("/lake/tokens/secret, really? #1; a & b", "/lake/tokens/secret, really? #1; a & b"),
        ("/lake/100%", "/lake/100%"),
        ("file:///lake/日本", "/lake/日本"),
        ("s3a://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://my.bucket-1/dt=2024-01-01/a b/(1)", "s3://my.bucket-1/dt=2024-01-01/a b/(1)"),
        ("gs://my_bucket", "gs://my_bucket"),
        ("az://$root/x", "az://$root/x"),
        ("abfss://c@account.dfs.core.windows.net/x/", "abfss://c@account.dfs.core.windows.net/x"),
        ("memory://name", "memory://name"),
    ],
)
def test_valid_addresses_of_roots_are_accepted(given: str, spelt: str) -> None:
    assert str(parse_address(given, "x")) == spelt


def test_valid_folders_servers_and_brokers_are_accepted() -> None:
    assert parse_folder("cache/of me", "x") == "cache/of me"
    assert str(parse_server("https://s3.example.org:9000/devstoreaccount1/", "x")) == (
        "https://s3.example.org:9000/devstoreaccount1"
    )
    assert [parse_server(f"http://{host}", "x").server for host in ("[::1]:80", "LOCALHOST:1", "127.0.0.1")] == [
        "::1",
        "localhost",
        "127.0.0.1",
    ]
    assert parse_brokers("kafka-1:9092, SSL://[::1]:9093,kafka_2", "x") == "kafka-1:9092, SSL://[::1]:9093,kafka_2"


def test_an_address_has_an_end() -> None:
    for parse in (parse_address, parse_folder, parse_server, parse_brokers):
        with pytest.raises(UnsupportedStoreError, match="more than 4096 characters"):
            parse("/" + "x:" * 1_000_000, "x")


def test_the_history_tells_no_login() -> None:
    found = redacted("at s3://k:s/l@b/x and a?token=hunter2, mail me@home")
    assert found == "at s3://b/x and a?token=..., mail me@home"
    for address in HOSTILE:
        assert "hunter2" not in redacted(address)
    assert redacted("abfss://c@account.dfs.core.windows.net/x#y") == "(an address that is refused)"
    assert redacted("topics a, b: 3 records") == "topics a, b: 3 records"


def test_a_server_that_the_profile_names_is_considered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile lake]\nendpoint_url = https://KEYID7:hunter2@host\nregion = r\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(UnsupportedStoreError) as caught:
        open_store("s3://b/x", StoreOptions(profile="lake"))
    assert "hunter2" not in str(caught.value)
