"""Reverts rewrites of tables by other programs, so that the tables list the segments again
(``stratalog.tiering.foreign_commits``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.upkeep.healing.plan import HealRow
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.partitions.errors import StratalogError


def put_right(
    storage: Storage, rewritten: Mapping[str, str], topics: Mapping[str, TopicImage], run: OperationRun
) -> None:
    """Revert the rewrites of these topics' tables; one row per table. ``topics`` is keyed by topic id."""
    for topic_id in rewritten:
        outcome = "repaired"
        try:
            storage.remote_table(topics[topic_id]).undo_rewrites()
        except StratalogError as error:
            outcome = "left alone"
            run.fail(topics[topic_id].name, error)
        run.add([table_row(topics[topic_id], outcome)])


def table_row(topic: TopicImage, outcome: str) -> HealRow:
    return HealRow(topic=topic.name, damage="table rewritten by others", source="remote", outcome=outcome)


def take_rewrites_back(
    storage: Storage, topics: Iterable[TopicImage], known: Mapping[str, int], run: OperationRun
) -> dict[str, int]:
    """Revert the rewrites of these topics' tables, each with a note. A table whose latest version is its ``known``
    version (by topic id) costs one request, and is not read. Returns the versions that are known now. A table that
    cannot be read is a failure of its topic.
    """

    def look(topic: TopicImage) -> tuple[int, str]:
        table, version = storage.remote_table(topic), known.get(topic.topic_id)
        if version is not None and table.is_newest(version):
            return version, ""
        log = table.load()
        if log.rewrite is None:
            return log.version, ""
        return table.undo_rewrites().version, str(log.rewrite)

    versions = {}
    for topic, (version, note) in run.done(ask_remote(storage, look, topics), lambda topic: topic.name):
        versions[topic.topic_id] = version
        run.notes += [f"{topic.name}: {note}"] if note else []
    return versions
