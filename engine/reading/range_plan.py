"""Plans the read of a stream's batch that is given as ranges of offsets.

Spark passes the ranges as rows, so that a batch can be a scan of files instead of rows from Python workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.plan_read import check_same_types, plan_again
from stratalog.engine.reading.read_plan import PartitionPlan, ReadPlan
from stratalog.engine.reading.stream_options import SourceOptions
from stratalog.partitions.clock import Clock


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The offsets ``[start, end)`` of a partition, and the history to which they belong."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    epochs: tuple[tuple[int, int], ...]
    """The leader epochs of these offsets, each with its first offset (at least ``start``)."""


def plan_of_ranges(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    ranges: Sequence[StreamRange],
    options: SourceOptions,
) -> ReadPlan:
    """Plan the files that hold the ranges now, for a reader with these options; ``ranges`` is not empty.

    Raises: InvalidCallError if the topics' types differ; see ``plan_again`` for deleted offsets, and for offsets
        that an unclean election has replaced.
    """
    image = metadata.image()
    topics = [image.topic(name) for name in dict.fromkeys(one.topic for one in ranges)]
    check_same_types(topics)
    plan = ReadPlan(
        partitions=tuple(
            PartitionPlan(one.topic, one.topic_id, one.partition, one.start, one.end, (), one.epochs, ())
            for one in ranges
        ),
        key_schema=topics[0].key_schema,
        value_schema=topics[0].value_schema,
        client_rack=options.client_rack,
        fail_on_data_loss=options.fail_on_data_loss,
        isolation=options.isolation,
    )
    return plan_again(
        metadata, storage, clock, memory, plan, client_metadata(storage.file, None, options.client_rack)
    )
