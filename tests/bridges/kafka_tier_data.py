"""Segments that real Kafka brokers have tiered, outside the repository, and segments made here."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from stratalog.bridges.kafka_tier.layout import IndexKind, LayoutOptions, RemoteSegmentLayout, open_layout
from stratalog.bridges.kafka_tier.metadata_log import messages_of
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.bridges.kafka_tier.segment_states import SegmentStates, folded
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.store import Store, open_store
from stratalog.partitions.store.memory import MemoryStore

DATA = Path(__file__).resolve().parents[3] / "shared" / "kafka-tier"
LOCAL = "a-local-tiered-storage"
AIVEN = "b-aiven-filesystem"
MAIN = f"{LOCAL}/main"
PREFIXED = f"{AIVEN}/zstd-heuristic-prefix-custom"
FOLDERS = (
    *(MAIN, f"{LOCAL}/half-way/1-killed", f"{LOCAL}/half-way/2-restarted"),
    *(f"{AIVEN}/{name}" for name in ("plain", "plain-chunks", "zstd", "encrypted")),
    PREFIXED,
)
real = pytest.mark.skipif(
    not DATA.is_dir(), reason="the segments of real brokers are not beside the repository (../shared/kafka-tier)"
)

Row = tuple[int, int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp, its type, leader epoch, key, value, headers."""


def keys() -> dict[str, bytes]:
    """The private keys of the encrypted folder, which protect only these data."""
    folder = DATA / AIVEN / "test-keys"
    return {f"test-key-{n}": (folder / f"test-key-{n}.TEST-ONLY.private.pkcs8.der").read_bytes() for n in (1, 2)}


@dataclass(frozen=True)
class Tier:
    """A folder of the data."""

    folder: str

    @property
    def path(self) -> Path:
        return DATA / self.folder

    @property
    def store(self) -> Store:
        return open_store(f"{self.path}/tier")

    @property
    def layout_name(self) -> str:
        return "aiven" if self.folder.startswith(AIVEN) else "local"

    @property
    def options(self) -> LayoutOptions:
        if self.layout_name == "local":
            return LayoutOptions(prefix="kafka-tiered-storage/")
        return LayoutOptions(keys=keys() if self.folder.endswith("encrypted") else {})

    @property
    def layout(self) -> RemoteSegmentLayout:
        return open_layout(self.layout_name, self.options)

    def states(self) -> SegmentStates:
        notes: list[str] = []
        found = folded(messages_of(open_store(f"{self.path}/remote-log-metadata"), notes))
        assert notes == []
        return found

    def truth(self, topic: str) -> dict[str, Any]:
        """The answers of the brokers; ``topic`` may name an earlier moment, such as ``gone.first``."""
        found: dict[str, Any] = json.loads((self.path / "truth" / f"{topic}.truth.json").read_text())
        return found

    def records(self, name: str) -> list[Row]:
        """The records that a consumer read, keyed by ``TOPIC-P``."""
        with gzip.open(self.path / "truth" / f"{name}.records.jsonl.gz", "rt") as lines:
            return [_row(json.loads(line)) for line in lines]

    def topics(self) -> list[str]:
        """The topics whose tier is complete in its last state."""
        return sorted(path.name.removesuffix(".truth.json") for path in (self.path / "truth").glob("*.truth.json"))


def _row(record: dict[str, Any]) -> Row:
    def plain(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return (
        record["offset"],
        record["timestamp"],
        ["CreateTime", "LogAppendTime"].index(record["timestampType"]),
        record["leaderEpoch"],
        plain(record["key"]),
        plain(record["value"]),
        [(name, plain(value)) for name, value in record["headers"]],
    )


def rows_of(records: pa.RecordBatch | pa.Table) -> list[Row]:
    """Columns of a reader as rows; a record without a timestamp has -1, as in Kafka."""
    names = ("offset", "timestamp", "timestampType", "leaderEpoch", "key", "value", "headers")
    columns = [records.column(name) for name in names]
    columns[1] = columns[1].cast(pa.int64())
    return [
        (offset, -1 if micros is None else micros // 1000, kind, epoch, key, value, _pairs(headers))
        for offset, micros, kind, epoch, key, value, headers in zip(
            *(column.to_pylist() for column in columns), strict=True
        )
    ]


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(pair["key"], pair["value"]) for pair in headers or []]


def batch_bytes(
    records: Sequence[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    base_offset: int = 0,
    *,
    codec: int = 0,
    epoch: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
) -> bytes:
    """A batch as aiokafka writes it."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for number, (key, value, headers) in enumerate(records):
        assert builder.append(number, timestamp_ms + number, key, value, headers) is not None
    data = builder.build()
    data[0:8] = base_offset.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def opened(folder: str, **options: Any) -> KafkaTier:
    """The tier of a folder, with its metadata and keys; ``options`` are passed to ``KafkaTier.open``."""
    tier = Tier(folder)
    return KafkaTier.open(
        f"{tier.path}/tier",
        layout=tier.layout_name,
        metadata=f"{tier.path}/remote-log-metadata",
        prefix=tier.options.prefix,
        keys=dict(tier.options.keys),
        **options,
    )


def got(tier: KafkaTier, topic: str, partition: int = 0, **bounds: Any) -> list[Row]:
    return rows_of(tier.read_arrow(topic, partitions=[partition], **bounds).read_all())


def in_memory(folder: str, change: Callable[[str, bytes], bytes | None], only: str = "") -> KafkaTier:
    """The tier with other bytes in its objects; None removes the object."""
    tier, data = opened(folder), Tier(folder)
    store = MemoryStore("memory://tampered", ManualClock())
    for name in sorted(data.store.names("")):
        if only not in name:
            continue
        changed = change(name, data.store.read(name))
        if changed is not None:
            store.create(name, changed)
    tier.store = store
    return tier


def segment_of(tier: KafkaTier, topic: str, at: int) -> RemoteLogSegment:
    return tier.states.of(tier.topic_id(topic), 0)[at]


def with_changed(kind: IndexKind, at: int, change: Callable[[bytes], bytes], topic: str = "txn") -> KafkaTier:
    """The main tier with one index of a segment changed."""
    names = opened(MAIN)
    name = names.layout.objects(segment_of(names, topic, at))[kind]
    return in_memory(MAIN, lambda one, data: change(data) if one == name else data)
