"""Topics that mirror a Kafka topic: only the mirror appends to them, until ``mirror --end``. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.config.topic_config import MIRROR_SOURCE, MIRROR_SOURCE_TOPIC, TopicConfig
from stratalog.partitions.errors import PolicyViolationError

ENDED = (
    "after mirror --end, this is an ordinary topic; to mirror the source again, delete this topic, or use "
    "another name"
)


def mirrored_topic(name: str, configs: Mapping[str, str]) -> str | None:
    """Return the cluster id and name of the Kafka topic that the topic of this name mirrors, or has mirrored; None
    if unknown.
    """
    if MIRROR_SOURCE_TOPIC in configs:
        return configs[MIRROR_SOURCE_TOPIC]
    source = configs.get(MIRROR_SOURCE)
    return f"{source.rpartition('/')[0]}/{name}" if source else None


def check_not_mirrored(topic: str, config: TopicConfig, verb: str) -> None:
    """Refuse an action on a topic that is a mirror; ``verb`` names the action, as in "append to". Raises:
    PolicyViolationError.
    """
    if config.mirror_source:
        raise PolicyViolationError(
            f"cannot {verb} topic {topic!r}: it mirrors {config.mirror_source}, and must keep the offsets of its "
            f"source; end the mirror first: stratalog mirror {topic} --end"
        )
