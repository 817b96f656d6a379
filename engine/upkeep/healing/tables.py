"""Tables that others have rewritten are put right: they list the segments again
(``stratalog.tiering.foreign_commits``)."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.upkeep.healing.plan import HealRow
from stratalog.partitions.errors import StratalogError


def put_right(
    storage: Storage, rewritten: Mapping[str, str], topics: Mapping[str, TopicImage], run: OperationRun
) -> None:
    """Take the rewrites of these topics' tables back; a row for each. ``topics`` by topic id."""
    for topic_id in rewritten:
        outcome = "mended"
        try:
            storage.remote_table(topics[topic_id]).undo_rewrites()
        except StratalogError as error:
            outcome = "left alone"
            run.fail(topics[topic_id].name, error)
        run.add([table_row(topics[topic_id], outcome)])


def table_row(topic: TopicImage, outcome: str) -> HealRow:
    """The row of a topic's table."""
    return HealRow(topic=topic.name, damage="table rewritten by others", source="remote", outcome=outcome)
