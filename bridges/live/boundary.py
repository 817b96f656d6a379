"""Finds the boundary between a mirrored log and its source, and checks that the two are one history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.mirror.catch_up import last_record, look_here
from stratalog.bridges.mirror.partitions import MirroredPartition
from stratalog.bridges.mirror.renamed import renamed, under_names_here
from stratalog.bridges.mirror.source import MirrorSource, SourceBounds, SourceTopic, without_leader
from stratalog.bridges.mirror.topics import check_source, check_typed
from stratalog.engine.config.mirrored import mirrored_topic
from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, LeaderNotAvailableError, OffsetOutOfRangeError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.offsets import Answer, FoundOffset, OffsetSpec
from stratalog.partitions.runner import values as values_of


@dataclass(frozen=True, slots=True)
class Boundary:
    """The boundary of a partition: records below ``offset`` are read here, later ones from the source up to its
    ``stable_end``.
    """

    offset: int
    there: SourceBounds
    leader_epoch: int | None
    """The source's leader epoch of the last record here; None if unknown, or if the partition does not exist here
    yet.
    """

    @property
    def end(self) -> int:
        """The current end of the relation."""
        return max(self.offset, self.there.stable_end)

    @property
    def lost(self) -> tuple[int, int] | None:
        """Offsets that the source had deleted before they were mirrored."""
        return (self.offset, self.there.log_start) if self.there.log_start > self.offset else None


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """The current state of a mirrored topic and its source."""

    topic: TopicImage
    source: MirrorSource
    """The source's topic, under the name of the mirror."""
    boundaries: Mapping[int, Boundary]
    """The boundaries of all partitions of the source; a partition that does not exist here yet has 0."""


def look_live(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    source: MirrorSource,
    name: str,
    values: TypedValues | None,
) -> LiveTopic:
    """The boundary of each partition of the topic ``name``. The log here is listed first. So the source's log ends
    before the log here only if the source has lost records.

    Raises: InvalidCallError for a topic that is not a mirror, or has typed values if no decoder is given;
    InconsistentTopicIdError, SourceTruncatedError; LeaderNotAvailableError; UnknownTopicOrPartitionError; errors
    from reading the source's bounds.
    """
    here = metadata.image().topic(name)
    mirrored = mirrored_topic(name, here.configs)
    if mirrored is None or MIRROR_SOURCE not in here.configs:
        raise InvalidCallError(
            f"topic {name!r} is not a mirror of a Kafka topic, so its records do not continue in Kafka: read it "
            "with "
            "cluster.read, or mirror a topic with cluster.mirror"
        )
    check_typed(here, values)
    there = _topic_there(source, mirrored.rpartition("/")[2], name)
    check_source(here, there)
    source = under_names_here(source, {there.renamed or name: name})
    keys = [(name, one.partition) for one in here.partitions]

    def look(key: TopicPartition) -> tuple[TopicPartition, tuple[int, int | None, bool]]:
        return key, look_here(metadata, storage, clock, memory, key)

    looks = values_of(storage.threads.run(look, keys))  # in the order in which they end
    ends = list_offsets(metadata, storage, memory, name, OffsetSpec.LATEST)
    every = [(name, partition) for partition in range(max(there.partitions, len(keys)))]
    bounds = source.bounds(every)
    for key in every:
        if key not in bounds:
            raise without_leader(key)
    parts = {key: MirroredPartition(key, log_end, epoch, bounds[key]) for key, (log_end, epoch, _) in looks}
    _check_histories(source, list(parts.values()), partial(last_record, metadata, storage, clock, memory))
    return LiveTopic(here, source, {key[1]: _boundary(key, ends, parts.get(key), bounds[key]) for key in every})


def _boundary(
    key: TopicPartition, ends: Mapping[int, Answer], part: MirroredPartition | None, there: SourceBounds
) -> Boundary:
    if part is None:
        return Boundary(0, there, None)
    end = ends[key[1]]
    if not isinstance(end, FoundOffset):
        raise LeaderNotAvailableError(f"{part}: {end.reason}")
    # Do not check the epoch if it is unknown: after gaps of a later epoch, or if a mirror has appended since the
    # epoch was read.
    known = not part.doubted and end.offset <= part.log_end
    return Boundary(end.offset, there, part.leader_epoch if known else None)


def _topic_there(source: MirrorSource, name_there: str, name: str) -> SourceTopic:
    (found,) = source.topics([name_there]).values()
    return renamed(found, name)


def _check_histories(
    source: MirrorSource,
    parts: Sequence[MirroredPartition],
    last_record: Callable[[TopicPartition], int | None],
) -> None:
    """Check that the source has the history of the mirrored log, by reading from the end of that log.

    Raises: SourceTruncatedError; errors from reading.
    """
    left = {part.key: part for part in parts if not part.done and part.range().leader_epoch is not None}
    while left:
        again: dict[TopicPartition, MirroredPartition] = {}
        with closing(source.read({key: part.range() for key, part in left.items()})) as reads:
            for read in reads:
                part = left.pop(read.key, None)
                if part is not None and read.error is not None:
                    if not isinstance(read.error, OffsetOutOfRangeError):
                        raise read.error
                    part.denied(source.bounds([part.key]).get(part.key), partial(last_record, part.key))
                    again[read.key] = part
                if not left:
                    break
        left = again
