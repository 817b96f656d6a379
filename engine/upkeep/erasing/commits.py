"""Commits the erasures of partitions, in batches of a bounded size."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from stratalog.engine.metadata.erasure_commands import AddErasures, WantedErasure
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.partition_commands import PartitionAnswer
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.erasing.tasks import FoundRecords
from stratalog.partitions.erasure import MOST_RANGES


def commit_erasures(
    metadata: MetadataClient, found: Iterable[tuple[PartitionView, FoundRecords]], searched: Container[str]
) -> Iterator[PartitionAnswer]:
    """Commit the erasure of each partition, under the view with which its records were found. ``searched`` are
    the ids of the topics whose remote log was searched too. One answer per partition, in order: see
    ``AddErasures``."""
    for chunk in _chunks(found):
        yield from metadata.submit(
            AddErasures(
                tuple(
                    WantedErasure(
                        *view.key,
                        one.offsets,
                        view.generation,
                        view.leader_epoch,
                        view.partition_epoch,
                        view.topic_id in searched,
                    )
                    for view, one in chunk
                )
            )
        )


def _chunks(
    found: Iterable[tuple[PartitionView, FoundRecords]],
) -> Iterator[list[tuple[PartitionView, FoundRecords]]]:
    """The partitions in groups of together about ``MOST_RANGES`` ranges."""
    chunk: list[tuple[PartitionView, FoundRecords]] = []
    ranges = 0
    for view, one in found:
        ranges += len(one.offsets)
        if chunk and ranges > MOST_RANGES:
            yield chunk
            chunk, ranges = [], len(one.offsets)
        chunk.append((view, one))
    if chunk:
        yield chunk
