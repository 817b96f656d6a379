"""The description of a cluster without its storage. A restore from the remote tier needs this description in
addition to the data. Pure.

The files of the Delta tables hold the records and, in their footers, leader epochs and producers. The tables lack
the partition counts of topics, log starts inside a segment, and configs. A description has these for all topics.
It leaves out brokers, because a restored cluster has different brokers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.partitions.bounded import decode_json
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.numbers import Epoch, Int64, Natural

VERSION = 1
MOST_BYTES = 128 * 1024 * 1024
"""The maximum size of a description, in bytes; a million partitions take about 20 MB."""


class PartitionDescription(NamedTuple):
    """One partition; an array in JSON."""

    leader_epoch: Epoch
    log_start_offset: Natural


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic, as in ``stratalog.engine.metadata.image.TopicImage``."""

    name: str
    topic_id: str
    key_schema: str | None
    value_schema: str | None
    replication_factor: Int64
    """The replication factor of the topic's first partition."""
    configs: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster. Equal clusters have equal encodings."""

    version: int = VERSION
    cluster_id: str
    configs: Mapping[str, str]
    topics: tuple[TopicDescription, ...]
    """Keyed by name."""


def describe(image: ClusterImage) -> ClusterDescription:
    """The description of the cluster as it is now. A topic without partitions is left out."""
    return ClusterDescription(
        cluster_id=image.cluster_id,
        configs=dict(sorted(image.configs.items())),
        topics=tuple(
            _describe(topic) for name in sorted(image.topic_ids) if (topic := image.topic(name)).partitions
        ),
    )


def _describe(topic: TopicImage) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        key_schema=topic.key_schema,
        value_schema=topic.value_schema,
        replication_factor=len(topic.first.original),
        configs=dict(sorted(topic.configs.items())),
        partitions=tuple(PartitionDescription(p.leader_epoch, p.log_start_offset) for p in topic.partitions),
    )


def encode(description: ClusterDescription) -> bytes:
    """The description as JSON."""
    return msgspec.json.encode(description)


def decode(data: bytes, what: str) -> ClusterDescription:
    """Parse a description from JSON. Raises: CorruptionError, naming ``what``, for any other text, or a later
    version.
    """
    found = decode_json(data, ClusterDescription, f"{what} is not a cluster description, or has a later version")
    if found.version != VERSION:
        raise CorruptionError(
            f"{what} is a description of version {found.version}; this release reads version {VERSION}"
        )
    return found


def digest(data: bytes) -> str:
    """A digest that identifies an encoding: 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
