"""Spark reads logs and remote tables on Azure and Google, with the jar sets ``azure`` and ``gcs``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cloud_servers import ACCOUNT, ACCOUNT_KEY, BUCKET
from stratalog import Cluster
from stratalog.jobs.jars import CLOUDS, jar_folder, missing_jars
from tests.cloud_servers import CloudEndpoint
from tests.spark.spark_cluster import begun

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.nightly,
    pytest.mark.classic("it starts a session of its own"),
]

ROOT = Path(__file__).resolve().parents[2]


def begun_in(folder: Path, root: str, table: str) -> Path:
    """The file of a cluster with a broker and the remote tier below ``root``, and records in both tiers."""
    folder.mkdir()
    file = folder / "cluster.toml"
    file.write_text(
        f'[cluster]\nid = "c"\nremote = "{root}/tier"\nvoters = [1]\n'
        f'[[brokers]]\nid = 1\nlog_dir = "{root}/b1"\n{table}'
    )
    begun(file)
    return file


@pytest.mark.parametrize("named_by", ["file", "environment"])
@pytest.mark.delta
def test_spark_reads_both_tiers_on_azure_and_google(
    named_by: str,
    azure_endpoint: CloudEndpoint,
    gcs_endpoint: CloudEndpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if any(missing_jars(jar_folder(), pins) for pins in CLOUDS):
        pytest.skip("python -m stratalog.jobs.jars azure, and gcs: they are fetched when they are asked for")
    tables = {"azure": "", "gcs": ""}
    if named_by == "file":
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
        tables = {e.kind: f'[{e.kind}]\nendpoint_url = "{e.url}"\n' for e in (azure_endpoint, gcs_endpoint)}
    azure = f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net/{tmp_path.name}"
    files = [
        begun_in(tmp_path / "azure", azure, tables["azure"]),
        begun_in(tmp_path / "gcs", f"gs://{BUCKET}/{tmp_path.name}", tables["gcs"]),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.reading_clouds", *map(str, files)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:3000] + "....." + done.stderr[-3000:] + done.stdout
    read = [line for line in done.stdout.splitlines() if line.startswith("READ")]
    assert read == ["READ [False, True] ['a', 'b', 'c'] 2"] * 2
    assert "SETTING" in done.stdout
    assert "LASTING []" in done.stdout
    assert ACCOUNT_KEY not in done.stdout + done.stderr
    for file in files:
        Cluster.open(file).verify(
            deep=True
        ).raise_for_failures()  # the remaining threads of a connector do no harm
