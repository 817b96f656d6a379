"""A stream as a run of appends: whatever is new since the last run, batch by batch, each exactly once.

Spark writes a batch down in the checkpoint before it is processed and after it; a batch that was cut short
comes again under the same id, and the log knows it by that id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from stratalog import Failure, Report
from stratalog.engine.driver.report import Value
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.store import StoreCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AppendBatch = Callable[["DataFrame", int], Report]
"""From a batch and its id to the report of its append."""


def append_stream(frame: DataFrame, checkpoint: str, append: AppendBatch) -> Report:
    """Append all batches that there are now; one row a batch. The first one that fails ends the run, and is
    the next run's first.

    Raises: the StratalogError with which a batch ended, when none was appended before it.
    """
    reports: list[tuple[int, Report]] = []
    stopped: list[StratalogError] = []

    def each(batch: DataFrame, batch_id: int) -> None:
        try:
            report = append(batch, batch_id)
            reports.append((batch_id, report))
            report.raise_for_failures()
        except StratalogError as error:
            stopped.append(error)
            raise

    quiet = logging.getLogger("py4j.clientserver")
    quiet.addFilter(_is_unexpected)
    query = (
        frame.writeStream.foreachBatch(each)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        if not stopped:
            raise
        if not reports:
            raise stopped[0] from None
    finally:
        query.stop()  # after Ctrl-C it would go on in a session that is not ours
        quiet.removeFilter(_is_unexpected)
    return summed(reports, stopped)


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Not our own error on its way through Spark, which py4j would show as a traceback."""
    return record.exc_info is None or not isinstance(record.exc_info[1], StratalogError)


def summed(reports: list[tuple[int, Report]], stopped: list[StratalogError]) -> Report:
    """One report of all batches. ``stopped`` holds the error that ended the run, if one did."""
    failures = [failure for _, report in reports for failure in report.failures]
    failures += [Failure.of("stream", error) for error in stopped if not failures]
    rows: list[dict[str, Value]] = [
        {
            "batch": batch_id,
            "records": report.totals.get("records"),
            "bytes": report.totals.get("bytes"),
            "files": sum(row.get("outcome") == "acknowledged" for row in report.rows),
            "storage_requests": report.counts.requests,
            "seconds": round(report.seconds, 3),
        }
        for batch_id, report in reports
    ]
    return Report(
        operation="append",
        rows=rows,
        failures=failures,
        totals={"batches": len(rows), **{name: _total(reports, name) for name in ("records", "bytes")}},
        seconds=sum(report.seconds for _, report in reports),
        counts=sum((report.counts for _, report in reports), StoreCounts()),
        notes=[f"batch {batch_id}: {note}" for batch_id, report in reports for note in report.notes],
    )


def _total(reports: list[tuple[int, Report]], name: str) -> int:
    return sum(value for _, report in reports if isinstance(value := report.totals.get(name), int))
