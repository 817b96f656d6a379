"""Reads several topics from the remote tier at the same time, without a wait for each topic if the remote tier is
down.

While the remote tier is down, each request, with its retries, takes as long as the deadline allows. Topics are
requested in waves; if all topics of a wave fail with transient errors, the rest is not requested. So a run over
thousands of topics detects an outage in the time of one request, and a few topics with a bad remote log do not
stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.partitions.errors import RetriableError, StorageError
from stratalog.partitions.records import schema_of
from stratalog.partitions.runner import Failed, Outcome
from stratalog.tiering.remote_log import RemoteLog

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable

T = TypeVar("T")
R = TypeVar("R")

WAVE = 16
"""The number of items to read at the same time."""


def ask_remote(storage: Storage, ask: Callable[[T], R], items: Iterable[T]) -> Iterator[Outcome[T, R]]:
    """Call ``ask``, which reads the remote tier, for each item: one outcome per item, in any order."""
    waiting = list(items)
    while waiting:
        wave, waiting = waiting[:WAVE], waiting[WAVE:]
        outcomes = list(storage.threads.run(ask, wave))
        yield from outcomes
        failed = [o.error for o in outcomes if isinstance(o, Failed) and isinstance(o.error, RetriableError)]
        if len(failed) == WAVE:
            yield from (
                Failed(item, StorageError(f"not read, because the remote tier is down: {failed[-1]}"))
                for item in waiting
            )
            return


def ask_for_logs(
    storage: Storage, image: ClusterImage, topics: Iterable[TopicImage]
) -> Iterator[Outcome[TopicImage, RemoteLog]]:
    """The remote logs of the topics that are tiered: one outcome per topic, in any order."""
    tiered = [topic for topic in topics if topic_config_of(image, topic).remote_storage_enable]
    return ask_remote(storage, lambda topic: storage.remote_table(topic).load(), tiered)


def current_log(table: DeltaTopicTable, topic: TopicImage, notes: list[str], *, dry_run: bool) -> RemoteLog:
    """The remote log of a tiered topic. A missing table is created, and rewrites by other programs are noted and
    reverted. In a dry run they are only noted.

    Raises: see ``DeltaTopicTable.load``, ``ensure`` and ``undo_rewrites``.
    """
    log = table.load()
    if log.version < 0 and not dry_run:
        table.ensure(schema_of(topic.key_schema, topic.value_schema))
        log = table.load()
    return without_rewrites(table, topic, log, notes, dry_run=dry_run)


def without_rewrites(
    table: DeltaTopicTable, topic: TopicImage, log: RemoteLog, notes: list[str], *, dry_run: bool
) -> RemoteLog:
    """A remote log that was just read, without rewrites by other programs: see ``current_log``."""
    if log.rewrite is None:
        return log
    notes.append(f"{topic.name}: {log.rewrite}")
    return log if dry_run else table.undo_rewrites()


def rewrites(image: ClusterImage, remotes: Mapping[str, RemoteLog]) -> list[str]:
    """Notes about rewrites of these topics' tables by other programs."""
    return [
        f"{image.topics[topic_id].name}: {remote.rewrite}"
        for topic_id, remote in remotes.items()
        if remote.rewrite is not None
    ]


def load_remotes(
    storage: Storage, image: ClusterImage, topics: Iterable[TopicImage], run: OperationRun
) -> dict[str, RemoteLog]:
    """The remote logs of the topics that are tiered, by topic id. An unreadable remote log is a failure."""
    answers = ask_for_logs(storage, image, topics)
    return {topic.topic_id: remote for topic, remote in run.done(answers, lambda topic: topic.name)}
