"""Commands that bring back what a description says (``stratalog.engine.metadata.description``)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from stratalog.engine.config.definition import Scope
from stratalog.engine.config.settings import check_config, topic_config
from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.description import TopicDescription
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.placement import place_replicas
from stratalog.engine.metadata.records import (
    EPOCH_GAP,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.errors import InvalidCallError, TopicAlreadyExistsError
from stratalog.partitions.paths import check_topic_name


@dataclass(frozen=True, slots=True)
class RestoreTopic:
    """Create a topic with the id and the configs that it had. Its partitions have neither ISR nor leader: nobody
    may append before a replica was made to begin where the remote log ends, which an unclean election does.

    Nothing to do when the topic is there already, with this id. Answer: how many replicas each partition has.
    """

    topic: TopicDescription
    """With the leader epochs and log starts that are known of its partitions."""

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Raises: InvalidCallError, InvalidTopicError, InvalidConfigError; TopicAlreadyExistsError when the name
        has another topic; InvalidReplicationFactorError when no broker is there.
        """
        topic = self.topic
        what = f"topic {topic.name!r}"
        check_topic_name(topic.name)
        check_not_internal(topic.name, "restore")
        if topic.topic_id in image.topics and image.topics[topic.topic_id].name == topic.name:
            return Decision((), len(image.topics[topic.topic_id].first.replicas))
        if topic.name in image.topic_ids or topic.topic_id in image.topics:
            raise TopicAlreadyExistsError(f"{what} already exists, but differs from the one to restore")
        if not topic.partitions:
            raise InvalidCallError(f"{what} is described without partitions")
        configs = {name: check_config(Scope.TOPIC, name, text, what) for name, text in topic.configs.items()}
        topic_config(configs, image.configs, what)
        racks = {broker.broker_id: broker.rack for broker in image.brokers.values() if not broker.fenced}
        factor = min(topic.replication_factor, len(racks))
        placed = place_replicas(racks, len(topic.partitions), factor, random.Random(topic.topic_id))
        records: list[MetadataRecord] = [
            TopicRecord(
                name=topic.name,
                topic_id=topic.topic_id,
                key_schema=topic.key_schema,
                value_schema=topic.value_schema,
            )
        ]
        records += (
            ConfigRecord(resource=ConfigResource.TOPIC, name=topic.name, key=key, value=value)
            for key, value in configs.items()
        )
        records += (
            PartitionRecord(
                topic_id=topic.topic_id,
                partition=number,
                replicas=replicas,
                isr=(),
                leader_epoch=partition.leader_epoch + EPOCH_GAP,
                log_start_offset=partition.log_start_offset,
                added=True,  # for all that its description says
            )
            for number, (replicas, partition) in enumerate(zip(placed, topic.partitions, strict=True))
        )
        return Decision(tuple(records), factor)
