"""The tier of a Kafka cluster in a bucket: ranged reads by tasks that were sent to other processes."""

from __future__ import annotations

import pickle

import pytest

from stratalog.bridges.kafka_tier.reading import read_task
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.partitions.store import StoreOptions, open_store
from tests.bridges.kafka_tier_data import AIVEN, Tier, real, rows_of
from tests.s3_server import S3Endpoint

pytestmark = [pytest.mark.s3, real]


def test_a_bucket_is_read_as_a_folder_is(s3_endpoint: S3Endpoint) -> None:
    data = Tier(f"{AIVEN}/encrypted")
    options = StoreOptions(s3_endpoint.url, s3_endpoint.region)
    root = f"s3://{s3_endpoint.bucket}/kafka-tier"
    bucket = open_store(root, options)
    for name in data.store.names(""):
        bucket.create(f"tier/{name}", data.store.read(name))
    metadata = open_store(f"{data.path}/remote-log-metadata")
    for name in metadata.names(""):
        bucket.create(f"metadata/{name}", metadata.read(name))
    tier = KafkaTier.open(
        f"{root}/tier", layout="aiven", metadata=f"{root}/metadata", keys=dict(data.options.keys), storage=options
    )
    rows = rows_of(tier.read_arrow("docs", partitions=[1]).read_all())
    assert rows == [row for row in data.records("docs-1") if row[0] < 980]
    before = tier.store.counts.snapshot()
    [task] = tier.plan("docs", partitions=[0], start=600, end=605).tasks
    there = pickle.loads(pickle.dumps(task))
    assert rows_of(next(read_task(there))) == [row for row in data.records("docs-0") if 600 <= row[0] < 605]
    assert (tier.store.counts - before).reads <= 4
