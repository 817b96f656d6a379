"""Estimates the requests of a run to object stores, for the report of its dry run.

A run repeats the requests of its dry run, so the requests of the dry run are counted. ``Planned.send`` adds the
requests that the dry run does not send. Requests to a folder cost nothing, so they are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from stratalog.engine.driver.estimate import Estimate
from stratalog.engine.driver.storage import Storage, is_billed
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.partitions.records import schema_of
from stratalog.partitions.segments.check import SMALL_BYTES
from stratalog.partitions.store import Store, StoreCounts, StoreOptions
from stratalog.partitions.store.object import INLINE_COPY_BYTES

_PART_BYTES = StoreOptions().part_bytes
_BEGIN_AND_COMPLETE = 2
"""The number of requests of a multipart upload in addition to its parts."""


@dataclass(slots=True)
class Planned:
    """Collects the estimate of one dry run, from the start of the dry run."""

    storage: Storage
    before: StoreCounts = field(init=False)
    more: Estimate = Estimate()  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        self.before = self.storage.billed_counts()

    def send(self, store: Store | None, *, puts: int = 0, gets: int = 0, moved_bytes: int = 0) -> None:
        """Add requests that a run would send to a store, and that the dry run has not sent. A store of None is a
        broker that the cluster file does not name.
        """
        if store is not None and is_billed(store):
            self.more += Estimate(puts, gets, moved_bytes)

    def send_look(self, image: ClusterImage, times: int = 1) -> None:
        """Add reads of the metadata: each lists the log and checks the root on a majority of the voters."""
        voters = self.voters(image)
        for store in voters[: len(voters) // 2 + 1]:
            self.send(store, puts=times, gets=times)

    def send_commit(self, image: ClusterImage) -> None:
        """Add a commit to the metadata: first a check of the root of each voter that the previous read left out;
        then on each voter the claim and the commit, each followed by a listing; then a read.
        """
        voters = self.voters(image)
        for store in voters:
            self.send(store, puts=2, gets=1)
        for store in voters[len(voters) // 2 + 1 :]:
            self.send(store, gets=1)
        self.send_commit_again(image)

    def send_commit_again(self, image: ClusterImage) -> None:
        """Add a later commit of the same run, which needs no new claim."""
        for store in self.voters(image):
            self.send(store, puts=2, gets=1)
        self.send_look(image)

    def voters(self, image: ClusterImage) -> list[Store]:
        """The roots of the voters."""
        stores = self.storage.stores
        return [stores[voter.broker_id] for voter in image.voters if voter.broker_id in stores]

    def estimate(self) -> Estimate | None:
        """The requests of the dry run so far, plus the requests that the dry run does not send; None without an
        object store.
        """
        if not any(map(is_billed, self.storage.all_stores)):
            return None
        return Estimate.of(self.storage.billed_counts() - self.before) + self.more


def uploads(size_bytes: int, whole_bytes: int = _PART_BYTES) -> int:
    """The number of requests billed as PUTs to write an object. An object of ``whole_bytes`` or more is uploaded
    in parts.
    """
    return 1 if size_bytes < whole_bytes else _BEGIN_AND_COMPLETE + pieces(size_bytes, _PART_BYTES)


def copies(size_bytes: int) -> tuple[int, int]:
    """The numbers of requests billed as PUTs and as GETs to copy an object. A server-side copy needs fewer."""
    return uploads(size_bytes, INLINE_COPY_BYTES + 1), pieces(size_bytes, _PART_BYTES)


def pieces(size_bytes: int, piece_bytes: int) -> int:
    """The number of pieces of at most ``piece_bytes``; at least one."""
    return max(1, math.ceil(size_bytes / piece_bytes))


def reads_to_rewrite(topic: TopicImage, size_bytes: int) -> int:
    """The number of requests to read a file of this size for a merge: one for a small file, otherwise one for the
    footer and one for each column.
    """
    return 1 if size_bytes <= SMALL_BYTES else 1 + columns_of(topic)


def columns_of(topic: TopicImage) -> int:
    """The number of stored columns of a topic's files. Reading a column takes one request in a file of one row
    group.
    """
    return _leaves(schema_of(topic.key_schema, topic.value_schema))


def _leaves(fields: Iterable[pa.Field]) -> int:
    return sum(_leaves_of(one.type) for one in fields)


def _leaves_of(kind: pa.DataType) -> int:
    below = [kind.field(index) for index in range(kind.num_fields)]
    return _leaves(below) if below else 1
