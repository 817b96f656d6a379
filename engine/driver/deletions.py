"""Errors that the deletion of a topic explains. A deletion is committed before the folders are emptied, so a
driver that read the metadata earlier may find half a log. That is not damage."""

from __future__ import annotations

from collections.abc import Sequence
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
)

EXPLAINED = (CorruptionError, SourceChangedError, StaleMetadataError)
"""Kinds of errors that half a log causes."""


def with_deletions(report: Report, metadata: MetadataClient) -> Report:
    """The report, whose failures of topics that are deleted by now say so. The metadata is read only if some
    failure may come from a deletion; if that fails, the report stays as it is."""
    codes = _codes(EXPLAINED)
    if not any(failure.code in codes for failure in report.failures):
        return report
    try:
        image = metadata.image()
    except StratalogError:
        return report
    return replace(
        report,
        failures=[_explained(failure, image) if failure.code in codes else failure for failure in report.failures],
    )


def _explained(failure: Failure, image: ClusterImage) -> Failure:
    topic, _, partition = failure.item.rpartition("-")
    if not partition.isdecimal() or failure.item in image.topic_ids or topic in image.topic_ids:
        return failure
    error = UnknownTopicOrPartitionError(f"topic {topic!r} was deleted before the operation was done with it")
    return Failure.of(failure.item, error)


def _codes(kinds: Sequence[type[StratalogError]]) -> frozenset[str]:
    found = {kind.code for kind in kinds}
    for kind in kinds:
        found |= _codes(kind.__subclasses__())
    return frozenset(found)
