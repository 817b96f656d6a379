"""SSE-KMS on a real server: each object of a root has the root's key, for any writer and size."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import botocore.config
import botocore.session
import pytest

from bench.s3_server import BUCKETS
from stratalog import Cluster
from tests.s3_server import S3Endpoint
from tests.unit.harness import batch
from tests.unit.test_cluster_on_s3 import life

pytestmark = pytest.mark.s3

PART_BYTES = 5 << 20
LARGE = 2 * PART_BYTES
KEYS = {"b1": "key-of-broker-1", "b2": "key-of-broker-2", "tier": "key-of-the-remote"}


def encryption(endpoint: S3Endpoint, bucket: str, folder: str) -> dict[str, dict[str, tuple[str, str, int]]]:
    """The kind of encryption, the key, and the size of each object, keyed by root and name."""
    config = botocore.config.Config(s3={"addressing_style": "path"})
    client = botocore.session.Session().create_client(
        "s3", endpoint_url=endpoint.url, region_name=endpoint.region, config=config
    )
    found: defaultdict[str, dict[str, tuple[str, str, int]]] = defaultdict(dict)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{folder}/"):
        for each in page.get("Contents", ()):
            _, root, name = each["Key"].split("/", 2)
            head = client.head_object(Bucket=bucket, Key=each["Key"])
            kind, key = head.get("ServerSideEncryption", "none"), head.get("SSEKMSKeyId", "")
            found[root][name] = (kind, key, each["Size"])
    client.close()
    return found


def test_every_object_of_a_root_has_its_key(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    """Appends, replication by the server's own copies, segments in parts, registers, Delta's files and log."""
    bucket, folder = BUCKETS[0], tmp_path.name
    storage = {root: f'kms_key_id = "{key}"\npart_bytes = {PART_BYTES}\n' for root, key in KEYS.items()}
    roots = {root: f"s3://{bucket}/{folder}/{root}" for root in KEYS}
    text = f'[cluster]\nid = "c"\nremote = "{roots["tier"]}"\nvoters = [1]\n'
    for number in (1, 2):
        root = f"b{number}"
        text += f'[[brokers]]\nid = {number}\nlog_dir = "{roots[root]}"\n[brokers.storage]\n{storage[root]}'
    text += f"[remote.storage]\n{storage['tier']}"
    text += f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\n'
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    cluster = Cluster.format(file, keeps_short=False)
    cluster.topics.create("large", partitions=1, replication_factor=2, configs={"remote.storage.enable": "true"})
    cluster.append_batches("large", {0: [batch(["x" * LARGE])]}).raise_for_failures()
    life(cluster, Cluster.open(file))

    found = encryption(s3_endpoint, bucket, folder)
    wrong = {
        (root, name): (kind, key)
        for root, objects in found.items()
        for name, (kind, key, _) in objects.items()
        if (kind, key) != ("aws:kms", KEYS[root])
    }
    assert wrong == {}
    assert {root for root, objects in found.items() if objects} == set(KEYS)
    names = [name for name in found["tier"] if name.startswith("t-")]
    assert any("/_delta_log/" in name for name in names)
    assert any(name.endswith(".parquet") for name in names)
