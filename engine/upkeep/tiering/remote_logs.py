"""Questions to the remote tier about several topics at once, without a wait for each of them.

Where the remote tier is down each question costs a deadline with all its retries. Topics are asked in waves, and
when a whole wave has failed with what may pass, the rest is not asked any more. So a run over thousands of topics
learns of an outage in the time of one question, and a few topics of which the remote is bad keep no other from
being asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.partitions.errors import RetriableError, StorageError
from stratalog.partitions.runner import Failed, Outcome
from stratalog.tiering.remote_log import RemoteLog

T = TypeVar("T")
R = TypeVar("R")

WAVE = 16
"""The number of items that are asked at once."""


def ask_remote(storage: Storage, ask: Callable[[T], R], items: Iterable[T]) -> Iterator[Outcome[T, R]]:
    """The answers of ``ask``, which asks the remote tier: one outcome an item, in any order."""
    waiting = list(items)
    while waiting:
        wave, waiting = waiting[:WAVE], waiting[WAVE:]
        outcomes = list(storage.threads.run(ask, wave))
        yield from outcomes
        failed = [o.error for o in outcomes if isinstance(o, Failed) and isinstance(o.error, RetriableError)]
        if len(failed) == WAVE:
            yield from (Failed(item, StorageError(f"not asked, as it is down: {failed[-1]}")) for item in waiting)
            return


def ask_for_logs(
    storage: Storage, image: ClusterImage, topics: Iterable[TopicImage]
) -> Iterator[Outcome[TopicImage, RemoteLog]]:
    """The remote logs of those of the topics that are tiered: one outcome for each of them, in any order."""
    tiered = [topic for topic in topics if topic_config_of(image, topic).remote_storage_enable]
    return ask_remote(storage, lambda topic: storage.remote_table(topic).load(), tiered)


def rewrites(image: ClusterImage, remotes: Mapping[str, RemoteLog]) -> list[str]:
    """Rewrites by others of these topics' tables, for the notes of a report."""
    return [
        f"{image.topics[topic_id].name}: {remote.rewrite}"
        for topic_id, remote in remotes.items()
        if remote.rewrite is not None
    ]


def load_remotes(
    storage: Storage, image: ClusterImage, topics: Iterable[TopicImage], run: OperationRun
) -> dict[str, RemoteLog]:
    """The remote logs of those of the topics that are tiered, by topic id. One that cannot be read is a
    failure.
    """
    answers = ask_for_logs(storage, image, topics)
    return {topic.topic_id: remote for topic, remote in run.done(answers, lambda topic: topic.name)}
