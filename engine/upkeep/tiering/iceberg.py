"""Updates the Iceberg tables of topics with ``remote.iceberg.table`` (``stratalog.tiering.iceberg_table``). After
every change of a remote log, its Iceberg table is updated. ``vacuum`` updates the tables of all topics, in case an
earlier run died before the update.
"""

from __future__ import annotations

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.records import schema_of


def follow(
    metadata: MetadataClient, storage: Storage, topic: TopicImage, config: TopicConfig, run: OperationRun
) -> bool:
    """Update the Iceberg table of a topic, if the topic has one, to match the remote log. Returns whether the
    table was outdated. An error is a failure of the table in the report; the run continues.
    """
    name = config.remote_iceberg_table
    if not name or run.dry_run:
        return False
    try:
        now = metadata.image().topics.get(topic.topic_id, topic)  # the topic's schema may have grown
        schema = schema_of(now.key_schema, now.value_schema)
        return storage.iceberg_table(topic, name).follow(storage.remote_table(topic), schema)
    except StratalogError as error:
        run.fail(f"{topic.name} as the Iceberg table {name}", error)
        return False


def expire(storage: Storage, topic: TopicImage, config: TopicConfig, before_ms: int, run: OperationRun) -> None:
    """Expire older snapshots of a topic's Iceberg table. Errors: see ``follow``."""
    name = config.remote_iceberg_table
    if not name or run.dry_run:
        return
    try:
        storage.iceberg_table(topic, name).expire(before_ms)
    except StratalogError as error:
        run.fail(f"{topic.name} as the Iceberg table {name}", error)
