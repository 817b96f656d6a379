"""Topics that mirror one of a Kafka cluster: nobody appends to them but the mirror, until it is ended. Pure."""

from __future__ import annotations

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.partitions.errors import PolicyViolationError

ENDED = (
    "after mirror --end it is a topic like any other; to mirror the source anew, delete it, or mirror it elsewhere"
)


def check_not_mirrored(topic: str, config: TopicConfig, verb: str) -> None:
    """Raises: PolicyViolationError for a topic that mirrors another; ``verb`` says what was to be done, as in
    "append to".
    """
    if config.mirror_source:
        raise PolicyViolationError(
            f"cannot {verb} topic {topic!r}: it mirrors {config.mirror_source}, and keeps its offsets; end that "
            f"first: stratalog mirror --end --topics {topic}"
        )
