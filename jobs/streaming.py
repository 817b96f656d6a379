"""A stream as a run of appends. A run appends the data that is new since the last run, batch by batch, each batch
exactly once. Spark records a batch in the checkpoint before and after the batch is processed. Spark repeats an
interrupted batch under the same id, so that the log recognizes the batch.
"""

from __future__ import annotations

import base64
import logging
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from stratalog import Failure, Report
from stratalog.engine.driver.report import Value
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import StoreCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AppendBatch = Callable[["DataFrame", int], Report]
"""A function that appends a batch, given the id of the batch, and returns the report."""


def append_stream(frame: DataFrame, checkpoint: str, append: AppendBatch) -> Report:
    """Append all batches that are available now. The report has one row per batch. The first batch that fails ends
    the run, and the next run starts with it.

    Raises: the StratalogError of a failed batch, if no batch was appended before it.
    """
    batches = Batches(append)
    quiet = logging.getLogger("py4j.clientserver")
    quiet.addFilter(_is_unexpected)
    query = (
        frame.writeStream.foreachBatch(batches)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        batches.hear(frame)
        if not batches.stopped:
            raise
        if not batches.reports:
            raise batches.stopped[0] from None
    else:
        batches.hear(frame)
    finally:
        query.stop()  # otherwise, after Ctrl-C, the query would continue in a session that this job did not start
        quiet.removeFilter(_is_unexpected)
    return summed(batches.reports, batches.stopped)


class Batches:
    """Appends batches, and keeps their reports. On Spark Connect, a copy of this object does this in a process on
    the server's machine, and stores the reports in the settings of the shared session, where ``hear`` finds them.
    """

    def __init__(self, append: AppendBatch) -> None:
        self._append = append
        self._letters = f"stratalog.batches.{random_id()}."
        self._is_copy = False
        self.reports: list[tuple[int, Report]] = []
        self.stopped: list[StratalogError] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_is_copy": True}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append one batch. Raises: the StratalogError that ends the query."""
        try:
            report = self._append(batch, batch_id)
            self._report(batch, batch_id, report)
            report.raise_for_failures()
        except StratalogError as error:
            self._report(batch, batch_id, error)
            raise

    def _report(self, batch: DataFrame, batch_id: int, result: Report | StratalogError) -> None:
        if self._is_copy:
            letter = base64.b64encode(pickle.dumps((batch_id, result))).decode("ascii")
            kind = "report" if isinstance(result, Report) else "error"
            batch.sparkSession.conf.set(f"{self._letters}{batch_id}.{kind}", letter)
        else:
            self._remember(batch_id, result)

    def _remember(self, batch_id: int, result: Report | StratalogError) -> None:
        if isinstance(result, Report):
            self.reports.append((batch_id, result))
        else:
            self.stopped.append(result)

    def hear(self, frame: DataFrame) -> None:
        """Keep the reports of a copy of this object, in the order of the batches."""
        conf = frame.sparkSession.conf
        letters = {key: text for key, text in conf.getAll.items() if key.startswith(self._letters)}
        results = [pickle.loads(base64.b64decode(text)) for text in letters.values()]  # noqa: S301 - of the copy
        for batch_id, one in sorted(results, key=lambda each: each[0]):
            self._remember(batch_id, one)
        for key in letters:
            conf.unset(key)


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Whether a log record is about an unexpected error. False for a stratalog error, because py4j would show it
    as a traceback.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], StratalogError)


_LEFT_OUT = ("bad_records", "dropped_fields")
"""The totals with the number of records or fields that batches left out."""


def summed(reports: list[tuple[int, Report]], stopped: list[StratalogError]) -> Report:
    """Return one report on all batches. ``stopped`` is the error that ended the run, if any."""
    failures = [failure for _, report in reports for failure in report.failures]
    failures += [Failure.of("stream", error) for error in stopped if not failures]
    rows: list[dict[str, Value]] = [
        {
            "batch": batch_id,
            "records": report.totals.get("records"),
            "bytes": report.totals.get("bytes"),
            **{name: report.totals[name] for name in _LEFT_OUT if name in report.totals},
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
        totals={
            "batches": len(rows),
            **{name: _total(reports, name) for name in ("records", "bytes")},
            **{name: _total(reports, name) for name in _LEFT_OUT if any(name in row for row in rows)},
        },
        seconds=sum(report.seconds for _, report in reports),
        counts=sum((report.counts for _, report in reports), StoreCounts()),
        notes=[f"batch {batch_id}: {note}" for batch_id, report in reports for note in _notes(report)],
    )


def _notes(report: Report) -> list[str]:
    """Return the notes of a batch, including its bad records, because a batch has only one row."""
    bad = [row for row in report.rows if row.get("outcome") == "bad"]
    notes = [f"{row['records']} bad records of {row['topic']}: {row['reason']}" for row in bad]
    return [*report.notes, *notes]


def _total(reports: list[tuple[int, Report]], name: str) -> int:
    return sum(value for _, report in reports if isinstance(value := report.totals.get(name), int))
