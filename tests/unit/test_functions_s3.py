"""A log without servers: each step is a process of 1 GB, without a JVM, a home, or files except temporary ones.

Cloud functions are like this. Brokers, the remote tier and the cluster file are in a bucket.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.s3_server import credentials
from tests.pages import ROOT
from tests.s3_server import S3Endpoint
from tests.unit.test_cluster_on_s3 import TIERED, put_file

pytestmark = pytest.mark.s3

GIGABYTE = 1 << 30
RECORDS = 50_000
STEPS = {
    "format": "Cluster.format(address).topics.create('t', partitions=2, replication_factor=2, configs=CONFIGS)",
    "append": """
cluster = Cluster.open(address)
for sequence in range(3):
    values = [b'%d-%d' % (sequence, n) + bytes(200) for n in range(RECORDS)]
    batches = {sequence % 2: [batch(values)]}
    cluster.append_batches('t', batches, producer='f', sequence=sequence).raise_for_failures()
""",
    "maintain": "Cluster.open(address).maintain().raise_for_failures()",
    "tier": "Cluster.open(address).tier().raise_for_failures()",
    "retain": "[Cluster.open(address).retain().raise_for_failures() for _ in range(2)]",
    "verify": "Cluster.open(address).verify(deep=True).raise_for_failures()",
    "read": """
cluster, found = Cluster.open(address), 0
for partition, end in ((0, 2 * RECORDS), (1, RECORDS)):
    at = 0
    while at < end:
        read = cluster.fetch('t', partition, at).records.num_rows
        at, found = at + read, found + read
print(found)
""",
}


def run(code: str, address: str, folder: Path) -> str:
    """The output of a function of 1 GB."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTE, GIGABYTE))

    head = "import sys\nfrom stratalog import Cluster\nfrom tests.unit.harness import batch\n"
    head += f"address, CONFIGS, RECORDS = sys.argv[1], {TIERED}, {RECORDS}\n"
    environ = {
        **credentials(),
        "PYTHONPATH": str(ROOT),
        "PATH": os.defpath,
        "HOME": "/nowhere",
        "TMPDIR": str(folder),
    }
    environ["AWS_ENDPOINT_URL_S3"] = os.environ["AWS_ENDPOINT_URL_S3"]
    done = subprocess.run(
        [sys.executable, "-B", "-c", head + code, address],
        cwd="/",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.nightly
def test_every_step_is_a_function_of_a_gigabyte(
    s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint.url)
    roots = {"1": "broker-1", "2": "broker-2", "remote": "tier"}
    address = put_file(s3_endpoint, tmp_path.name, roots)
    found = {}
    for step, code in STEPS.items():
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            found[step] = run(code, address, Path(folder))
    assert found["read"].strip() == str(3 * RECORDS)
