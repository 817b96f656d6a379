"""Topics with records that must not be deleted before a time (``protect.until.ms``). Pure.

Records are removed from a log only by a metadata change: the log start grows, the topic is removed, or the remote
log is abandoned. Files are deleted only after such a change, and because of it. So one check of the records of a
commit, against the commit's image, covers every job and driver: ``check_protected``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from stratalog.engine.config.settings import topic_config
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.records import (
    ConfigRecord,
    ErasureRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RemovalRuleRecord,
    RemoveTopicRecord,
)
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.clock import time_text
from stratalog.partitions.errors import PolicyViolationError
from stratalog.partitions.retention import UNLIMITED

Now = Callable[[], int | None]
"""The current time, as used for deletions by time (``partitions.agreed_time``); None: every protection is still in
force. Called only for protected topics.
"""

PROTECT = "protect.until.ms"
_LOOSENING = frozenset({PROTECT, "remote.storage.enable"})
"""The configs that can end a protection, or delete records."""


def protection(image: ClusterImage, topic: TopicImage) -> TopicConfig:
    """The protecting configs of a topic; none for the engine's own topics."""
    own = {**topic.configs, PROTECT: str(UNLIMITED)} if topic.name in INTERNAL_TOPICS else topic.configs
    return topic_config(own, image.configs, f"topic {topic.name!r}")


def is_protected(image: ClusterImage, topic_id: str, now_ms: Now) -> bool:
    """Whether records of the topic must not be deleted now; False for a missing topic."""
    topic = image.topics.get(topic_id)
    if topic is None or (PROTECT not in topic.configs and PROTECT not in image.configs):
        return False  # most topics are not protected: skip parsing
    config = protection(image, topic)
    return config.protect_until_ms != UNLIMITED and config.is_protected(now_ms())


def check_protected(image: ClusterImage, records: Sequence[MetadataRecord], now_ms: Now) -> None:
    """Check ``records`` that are about to be committed on ``image``.

    Raises: PolicyViolationError if they would delete protected records, or shorten a protection.
    """
    for record in records:
        match record:
            case RemoveTopicRecord(topic_id=topic_id) if is_protected(image, topic_id, now_ms):
                _refuse(image, topic_id, now_ms, "the topic cannot be deleted")
            case RemovalRuleRecord(topic_id=topic_id) if is_protected(image, topic_id, now_ms):
                _refuse(image, topic_id, now_ms, "no rule can remove its records")
            case ErasureRecord(topic_id=topic_id) if is_protected(image, topic_id, now_ms):
                _refuse(image, topic_id, now_ms, "no erasure can remove its records")
            case PartitionChangeRecord(topic_id=topic_id, partition=partition, log_start_offset=start):
                if start is UNSET or not is_protected(image, topic_id, now_ms):
                    continue
                if start > image.partition(topic_id, partition).log_start_offset:
                    _refuse(
                        image, topic_id, now_ms, f"the log start of partition {partition} cannot move to {start}"
                    )
    if any(isinstance(record, ConfigRecord) and record.key in _LOOSENING for record in records):
        _check_configs(image, records, now_ms)


def _check_configs(image: ClusterImage, records: Sequence[MetadataRecord], now_ms: Now) -> None:
    protected = [topic for topic in image.topics.values() if is_protected(image, topic.topic_id, now_ms)]
    if not protected:
        return
    after = apply(image, image.next_offset, records)
    for topic in protected:
        before, changed = protection(image, topic), protection(after, after.topics[topic.topic_id])
        if changed.protect_until_ms < before.protect_until_ms:
            _refuse(image, topic.topic_id, now_ms, f"{PROTECT} can be moved later, not earlier")
        if before.remote_storage_enable and not changed.remote_storage_enable:
            _refuse(image, topic.topic_id, now_ms, "its remote log cannot be disabled (remote.storage.enable)")


def _refuse(image: ClusterImage, topic_id: str, now_ms: Now, what: str) -> None:
    """Raises: PolicyViolationError."""
    topic = image.topics[topic_id]
    until = time_text(protection(image, topic).protect_until_ms)
    doubt = ""
    if now_ms() is None:
        doubt = (
            "; the clocks of this machine and of the storage disagree on whether that time has passed: see health"
        )
    raise PolicyViolationError(f"topic {topic.name!r} is protected until {until} ({PROTECT}): {what}{doubt}")
