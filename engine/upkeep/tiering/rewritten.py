"""Reverts rewrites of tables by other programs while nothing is to be uploaded: checks by one request whether a
table has an unknown version, and reads only those that have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote


def take_rewrites_back(
    storage: Storage, topics: Iterable[TopicImage], known: Mapping[str, int], run: OperationRun
) -> dict[str, int]:
    """Revert the rewrites of these topics' tables, with a note for each. The ``known`` versions, by topic id, have
    none. Returns the versions that are known now. A table that cannot be read is a failure of its topic."""

    def look(topic: TopicImage) -> tuple[int, str]:
        table, version = storage.remote_table(topic), known.get(topic.topic_id)
        if version is not None and not table.has_version(version + 1):
            return version, ""
        log = table.load()
        if log.rewrite is None:
            return log.version, ""
        return table.undo_rewrites().version, str(log.rewrite)

    versions = {}
    for topic, (version, said) in run.done(ask_remote(storage, look, topics), lambda topic: topic.name):
        versions[topic.topic_id] = version
        run.notes += [f"{topic.name}: {said}"] if said else []
    return versions
