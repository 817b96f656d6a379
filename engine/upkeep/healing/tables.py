"""Tables that others have rewritten are put right: they list the segments again
(``stratalog.tiering.foreign_commits``)."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Value
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.metadata.image import TopicImage
from stratalog.partitions.errors import StratalogError


def put_right(
    context: Context, rewritten: Mapping[str, str], topics: Mapping[str, TopicImage], run: OperationRun
) -> None:
    """Take the rewrites of these topics' tables back; a row for each. ``topics`` by topic id."""
    for topic_id in rewritten:
        outcome = "mended"
        try:
            context.remote_table(topics[topic_id]).undo_rewrites()
        except StratalogError as error:
            outcome = "left alone"
            run.fail(topics[topic_id].name, error)
        run.rows.append(table_row(topics[topic_id], outcome))


def table_row(topic: TopicImage, outcome: str) -> dict[str, Value]:
    """The line of a topic's table in the report."""
    return {
        "topic": topic.name,
        "partition": None,
        "broker": None,
        "damage": "table rewritten by others",
        "start": None,
        "end": None,
        "source": "remote",
        "outcome": outcome,
    }
