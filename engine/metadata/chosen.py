"""Topics and partitions of an image, chosen by name or by key, with their current configs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.config.settings import cluster_config, topic_config
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.partitions.identity import TopicIdPartition


def topic_config_of(image: ClusterImage, topic: TopicImage) -> TopicConfig:
    """The current configs of a topic. Raises: InvalidConfigError when values contradict each other."""
    return topic_config(topic.configs, image.configs, f"topic {topic.name!r}")


def cluster_config_of(image: ClusterImage) -> ClusterConfig:
    """The current configs of the cluster."""
    return cluster_config(image.configs)


def chosen_topics(image: ClusterImage, names: Iterable[str] | None) -> list[TopicImage]:
    """The named topics (None: all), sorted by name.

    Raises: UnknownTopicOrPartitionError.
    """
    chosen = sorted(image.topic_ids) if names is None else list(dict.fromkeys(names))
    return [image.topic(name) for name in chosen]


def chosen_partitions(
    image: ClusterImage, names: Iterable[str] | None, only: Collection[TopicIdPartition] | None
) -> list[tuple[TopicImage, list[PartitionView]]]:
    """The partitions of the named topics (None: all), restricted to ``only`` if given; topics without such
    partitions are left out. Missing partitions are skipped.

    Raises: UnknownTopicOrPartitionError for a topic name.
    """
    topics = chosen_topics(image, names)
    if only is None:
        return [(topic, image.views(topic.name)) for topic in topics]
    wanted: dict[str, list[int]] = {}
    for topic_id, partition in sorted(only):
        wanted.setdefault(topic_id, []).append(partition)
    return [
        (topic, [image.view(topic.topic_id, p) for p in wanted[topic.topic_id] if p < len(topic.partitions)])
        for topic in topics
        if topic.topic_id in wanted
    ]
