"""The Iceberg tables of topics with ``remote.iceberg.table``, which follow their remote logs
(``stratalog.tiering.iceberg_table``). Whatever has changed a remote log lets them follow; ``vacuum`` does for all
topics what a run that died has left out.
"""

from __future__ import annotations

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.metadata.image import TopicImage
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.records import schema_of


def follow(context: Context, topic: TopicImage, run: OperationRun) -> bool:
    """Bring the Iceberg table of a topic that has one to the state of its remote log; whether it was behind. That
    it cannot be is a failure of the table, and keeps nothing else from being done.
    """
    image = context.metadata.image()
    topic = image.topics.get(topic.topic_id, topic)
    name = context.topic_config(image, topic).remote_iceberg_table
    if not name or run.dry_run:
        return False
    try:
        remote = context.remote_table(topic)
        schema = schema_of(topic.key_schema, topic.value_schema)
        return context.iceberg_table(topic, name).follow(
            remote.load, lambda segment: remote.remote.uri_of(remote.path(segment)), schema
        )
    except StratalogError as error:
        run.fail(f"{topic.name} as the Iceberg table {name}", error)
        return False


def expire(context: Context, topic: TopicImage, before_ms: int, run: OperationRun) -> None:
    """Forget the snapshots of a topic's Iceberg table that are older. Fails as ``follow`` does."""
    name = context.topic_config(context.metadata.image(), topic).remote_iceberg_table
    if not name or run.dry_run:
        return
    try:
        context.iceberg_table(topic, name).expire(before_ms)
    except StratalogError as error:
        run.fail(f"{topic.name} as the Iceberg table {name}", error)
