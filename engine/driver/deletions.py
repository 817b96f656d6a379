"""Errors that the deletion of a topic explains. A deletion is committed before the folders are emptied, so a
driver that read the metadata earlier may find an incomplete log. That is not damage.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import (
    CorruptionError,
    SourceChangedError,
    StaleMetadataError,
    StratalogError,
    UnknownTopicOrPartitionError,
    codes_of,
)

EXPLAINED = (CorruptionError, SourceChangedError, StaleMetadataError)
"""Kinds of errors that an incomplete log causes."""


def with_deletions(report: Report, metadata: MetadataClient, topics: Collection[str]) -> Report:
    """Return the report. If one of ``topics`` has been deleted, the failures about that topic say so. The metadata
    is read only if a failure may come from a deletion. If the metadata cannot be read, the report is unchanged.
    """
    codes = codes_of(*EXPLAINED)
    if not any(failure.code in codes for failure in report.failures):
        return report
    try:
        image = metadata.image()
    except StratalogError:
        return report
    return replace(
        report,
        failures=[
            _explained(failure, topics, image) if failure.code in codes else failure for failure in report.failures
        ],
    )


def _explained(failure: Failure, topics: Collection[str], image: ClusterImage) -> Failure:
    topic, _, partition = failure.item.rpartition("-")
    if not partition.isdecimal() or topic not in topics or topic in image.topic_ids:
        return failure
    error = UnknownTopicOrPartitionError(f"topic {topic!r} was deleted during the operation")
    return Failure.of(failure.item, error)
