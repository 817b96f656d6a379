"""Python workers with 1 GiB of memory, as on serverless platforms: wide rows, and more of them than that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog import Cluster
from tests.s3_server import S3Endpoint
from tests.spark.memory_limited import LIMIT, PARTITIONS, ROWS, WIDE_BYTES
from tests.spark.standalone import ROOT
from tests.spark_session import connect_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.classic("it starts both kinds of session, each in its own process"),
]


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_workers_of_a_gibibyte_handle_64_partitions_of_wide_rows(
    kind: str, s3_endpoint: S3Endpoint, tmp_path: Path
) -> None:
    """One of the partitions is larger than a worker's memory: appended, copied, tiered, verified, read back."""
    bucket, remote = s3_endpoint.buckets
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "s3://{bucket}/{tmp_path.name}/b{n}"\n' for n in (1, 2))
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'[cluster]\nid = "m"\nvoters = [1]\nremote = "s3://{remote}/{tmp_path.name}"\n{brokers}'
        f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\n'
    )
    Cluster.format(file)
    with ExitStack() as stack:
        master = "local[2]" if kind == "classic" else stack.enter_context(connect_server(tmp_path, LIMIT))
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.memory_limited", master, str(file)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-6000:]
    answer = json.loads(done.stdout.rpartition("TOLD ")[2])
    everything = [ROWS, ROWS * WIDE_BYTES, sum(range(ROWS))]
    assert answer["limit"] == 1024**3
    assert (answer["appended"], answer["findings"], answer["remote"]) == (ROWS, 0, True)
    assert min(answer["copied"], answer["uploaded"]) >= PARTITIONS
    assert answer["read"] == everything
