"""Topics whose records nobody may delete before a time (``protect.until.ms``). Pure.

Records leave a log only by a change of the metadata: its log start grows, its topic is removed, or its remote log
is given up. Files go after that change, and because of it. So one look at the records of a commit, on the image
that it is made on, holds every job and every driver: ``check_protected``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from stratalog.engine.config.settings import topic_config
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.clock import time_text
from stratalog.partitions.errors import PolicyViolationError
from stratalog.partitions.retention import UNLIMITED

PROTECT = "protect.until.ms"
_LOOSENING = frozenset({PROTECT, "remote.storage.enable"})
"""Configs by which a protection may end, or records go."""


def protection(image: ClusterImage, topic: TopicImage) -> TopicConfig:
    """The configs of a topic as far as they protect it: the engine's own topics are left to the engine."""
    own = {**topic.configs, PROTECT: str(UNLIMITED)} if topic.name in INTERNAL_TOPICS else topic.configs
    return topic_config(own, image.configs, f"topic {topic.name!r}")


def check_protected(image: ClusterImage, records: Sequence[MetadataRecord], now_ms: int) -> None:
    """``records`` are about to be committed on ``image``.

    Raises: PolicyViolationError where they would delete records that are protected now, or protect them for less
        long.
    """
    for record in records:
        match record:
            case RemoveTopicRecord(topic_id=topic_id):
                _check(image, topic_id, now_ms, "the topic cannot be deleted")
            case PartitionChangeRecord(topic_id=topic_id, log_start_offset=start) if start is not UNSET:
                if start > image.partition(topic_id, record.partition).log_start_offset:
                    _check(image, topic_id, now_ms, f"the log start cannot move to {start}")
    if any(isinstance(record, ConfigRecord) and record.key in _LOOSENING for record in records):
        _check_configs(image, apply(image, image.next_offset, records), now_ms)


def _check_configs(image: ClusterImage, after: ClusterImage, now_ms: int) -> None:
    for topic in image.topics.values():
        before, then = protection(image, topic), after.topics.get(topic.topic_id)
        if then is None or not before.is_protected(now_ms):
            continue
        changed = protection(after, then)
        if changed.protect_until_ms < before.protect_until_ms:
            _refuse(topic, before, f"{PROTECT} can be put later, not sooner")
        if before.remote_storage_enable and not changed.remote_storage_enable:
            _refuse(topic, before, "its remote log cannot be given up (remote.storage.enable)")


def is_protected(image: ClusterImage, topic_id: str, now_ms: int) -> bool:
    """Whether nobody may delete records of the topic now; of one that is gone, they may."""
    topic = image.topics.get(topic_id)
    return topic is not None and protection(image, topic).is_protected(now_ms)


def _check(image: ClusterImage, topic_id: str, now_ms: int, what: str) -> None:
    if is_protected(image, topic_id, now_ms):
        topic = image.topics[topic_id]
        _refuse(topic, protection(image, topic), what)


def _refuse(topic: TopicImage, config: TopicConfig, what: str) -> None:
    """Raises: PolicyViolationError."""
    raise PolicyViolationError(
        f"topic {topic.name!r} is protected until {time_text(config.protect_until_ms)} ({PROTECT}): {what}"
    )
