"""Changed batches and snapshots of the metadata, whole and with the right digests: odd records, records that do
not fit, lineages and names of other epochs.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.engine.quorum.batch import KIND, _digest
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import TIMESTAMP, physical_schema
from stratalog.partitions.segments.footer import FOOTER_KEY
from stratalog.partitions.segments.writer import SegmentWriter
from tests.fuzz.mutations_of_bytes import Mutated, mutate_bytes
from tests.fuzz.mutations_of_json import mutate_json

STRANGER = ClusterKey("c", [b"the key of somebody who is nobody"])
ODD_RECORDS: Sequence[dict[str, Any]] = (
    {"type": "NoOpRecord"},
    {"type": "VotersRecord", "cluster_id": "other", "voters": []},
    {"type": "VotersRecord", "cluster_id": "c", "voters": [{"broker_id": 9, "directory_id": "x"}], "awaited": [9]},
    {"type": "VotersRecord", "cluster_id": "c", "voters": [{"broker_id": 1, "directory_id": "../../../x"}]},
    {"type": "RegisterBrokerRecord", "broker_id": -1, "directory_id": "../..", "log_dir": "/", "rack": "\x1b[2J"},
    {"type": "RegisterBrokerRecord", "broker_id": 1, "directory_id": "0" * 32, "log_dir": "b1", "root": "x@1+2"},
    {"type": "RegisterBrokerRecord", "broker_id": 2**63 - 1, "directory_id": "0" * 32, "log_dir": ""},
    {"type": "FenceBrokerRecord", "broker_id": 77},
    {"type": "FenceBrokerRecord", "broker_id": 1, "by_hand": True},
    {"type": "UnfenceBrokerRecord", "broker_id": 1, "broker_epoch": -5},
    {"type": "UnregisterBrokerRecord", "broker_id": 1},
    {"type": "TopicRecord", "name": "../../x", "topic_id": "../../y"},
    {"type": "TopicRecord", "name": "a\r\nb\x1b]0;t\x07", "topic_id": "f" * 32},
    {
        "type": "TopicRecord",
        "name": "deep",
        "topic_id": "e" * 32,
        "value_schema": '{"type":"array","elementType":' * 3000,
    },
    {"type": "TopicRecord", "name": "odd", "topic_id": "d" * 32, "value_schema": '{"type":"struct","fields":[]}'},
    {"type": "TopicRecord", "name": "dec", "topic_id": "c" * 32, "value_schema": '"decimal(999999999999,1)"'},
    {"type": "TopicSchemaRecord", "topic_id": "nobody", "key_schema": "null"},
    {"type": "PartitionRecord", "topic_id": "f" * 32, "partition": 10**9, "replicas": [1], "isr": [1]},
    {"type": "PartitionRecord", "topic_id": "f" * 32, "partition": -1, "replicas": [], "isr": [], "leader": 7},
    {
        "type": "PartitionChangeRecord",
        "topic_id": "f" * 32,
        "partition": 0,
        "leader": 99,
        "isr": [99],
        "replicas": [],
    },
    {"type": "RemoveTopicRecord", "topic_id": "nobody"},
    {
        "type": "ConfigRecord",
        "resource": "cluster",
        "name": "",
        "key": "replica.selector.class",
        "value": "os.system",
    },
    {
        "type": "ConfigRecord",
        "resource": "cluster",
        "name": "",
        "key": "replica.selector.class",
        "value": "this.s",
    },
    {"type": "ConfigRecord", "resource": "cluster", "name": "", "key": "no.such.key", "value": "1"},
    {"type": "ConfigRecord", "resource": "cluster", "name": "", "key": "num.partitions", "value": "-1"},
    {
        "type": "ConfigRecord",
        "resource": "cluster",
        "name": "",
        "key": "broker.session.timeout.ms",
        "value": "9" * 4400,
    },
    {"type": "ConfigRecord", "resource": "topic", "name": "plain", "key": "segment.bytes", "value": "1e999"},
    {"type": "ConfigRecord", "resource": "topic", "name": "\x1b[31m", "key": "retention.ms", "value": None},
    {"type": "UnknownRecord"},
)


def read_values(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Our footer and the values of a data file of the metadata."""
    parquet = pq.ParquetFile(pa.BufferReader(data))
    own = json.loads((parquet.metadata.metadata or {})[FOOTER_KEY])
    return own, parquet.read(columns=["value"], use_threads=False).column("value").to_pylist()


def encode_values(own: dict[str, Any], values: Sequence[bytes], key: ClusterKey | None) -> bytes:
    """A whole batch of these values with the right digest; signed with ``key``."""
    sink = io.BytesIO()
    name = DataName(own["base_offset"], None, own["lineage"][-1][0])
    writer = SegmentWriter(
        sink,
        physical_schema(),
        topic_id=own["topic_id"],
        partition=0,
        base_offset=name.base_offset,
        sign=None if key is None else partial(key.tag, KIND, str(name)),
    )
    stamp = pa.scalar(own["created_ms"] * 1000, pa.int64()).cast(TIMESTAMP)
    writer.write(
        pa.record_batch({"timestamp": pa.repeat(stamp, len(values)), "value": pa.array(values, pa.binary())})
    )
    lineage = Lineage(tuple(entry) for entry in own["lineage"])
    digest = _digest(lineage, values, own["created_ms"])
    writer.close(lineage=lineage, producers=lambda _: {}, created_ms=own["created_ms"], batch_id=digest)
    return sink.getvalue()


def mutate_batch(rng: random.Random, data: bytes) -> Mutated:
    """Replace a batch by one with odd records."""
    own, values = read_values(data)
    values, what = mutate_values(rng, values)
    key = _key(rng)
    return Mutated(encode_values(own, values, key), f"metadata records: {what}{_signed(key)}", True)


def odd_batch(rng: random.Random, last: bytes, epoch: int) -> Mutated:
    """A batch of ``epoch`` after ``last``, as a dead driver has left it on one voter."""
    own, values = read_values(last)
    start = own["next_offset"]
    if rng.random() < 0.2:
        start = rng.choice((start + 1, start - 1, 0, 10**9, 2**62))
    lineage = (
        [*own["lineage"], [epoch, max(start, own["next_offset"])]]
        if epoch > own["lineage"][-1][0]
        else own["lineage"]
    )
    own = own | {"base_offset": start, "lineage": lineage}
    records = [rng.choice(ODD_RECORDS) for _ in range(rng.choice((1, 1, 2, 5)))]
    if rng.random() < 0.4:
        put, what = mutate_values(rng, values)
    else:
        put, what = [json.dumps(record).encode() for record in records], " ".join(map(str, records))[:200]
    key = _key(rng)
    return Mutated(
        encode_values(own, put, key), f"a batch at {start} of epoch {epoch}{_signed(key)}: {what}", True
    )


def _key(rng: random.Random) -> ClusterKey | None:
    return rng.choice((None, None, STRANGER))


def _signed(key: ClusterKey | None) -> str:
    return "" if key is None else ", signed by a stranger"


def mutate_values(rng: random.Random, values: list[bytes]) -> tuple[list[bytes], str]:
    """Make one record odd, remove it, repeat it, or move it."""
    values = list(values)
    at = rng.randrange(len(values))
    match rng.randrange(7):
        case 0:
            values.insert(at, values[at])
            what = "there twice"
        case 1 if len(values) > 1:
            del values[at]
            what = "gone"
        case 2:
            rng.shuffle(values)
            what = "in another order"
        case 3:
            record = rng.choice(ODD_RECORDS)
            values.insert(at, json.dumps(record).encode())
            what = f"{record} before it"
        case 4:
            changed = mutate_bytes(rng, values[at])
            values[at], what = changed.data, changed.what
        case _:
            try:
                changed = mutate_json(rng, values[at])
            except ValueError:
                changed = mutate_bytes(rng, values[at])
            values[at], what = changed.data, changed.what
    return values, f"record {at} of {len(values)}: {what}"
