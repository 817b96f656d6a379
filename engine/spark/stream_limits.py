"""The source of a stream with limits: Spark 4.2 and later tell it where a batch begins, and what limits it.

Earlier versions do not have what it builds on: nobody imports it there (``format``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.spark.range_stream import RangeStream
from stratalog.engine.spark.stream_source import StreamReader


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """A query's source, batch by batch."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of the options; Spark knows only one, ``latestOffset`` both."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See ``StreamSource.stop_at_present_end``."""
        self._open()[0].stop_at_present_end()

    def latestOffset(  # type: ignore[override]  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Where the next batch ends. Also tells the group where it begins: up to there all is processed, and
        Spark calls ``commit`` only when a batch is followed by another one, so that lag would never be 0.
        """
        source, progress = self._open()
        begin = StreamOffsets.from_json(start)
        max_rows = max_bytes = None
        if not isinstance(limit, ReadAllAvailable):
            max_rows, max_bytes = self._options.max_rows, self._options.max_bytes
        end = source.latest(begin, max_rows, max_bytes)
        self._check_new_fields(source)
        if progress is not None:
            progress.report(begin)
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Where the log ended at this trigger, whatever the limit, and how far behind it the batch ends:
        ``latestOffset`` in the query's progress, as listeners get it. A Python source has no metrics there."""
        source = self._open()[0]
        if source.latest_seen is None or source.planned is None:
            return None
        return {**source.latest_seen.to_json(), **source.planned.behind(source.latest_seen)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A batch's tasks; ``latestOffset`` has looked at where it begins."""
        return self._slices(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """The next batch tells the group, where it begins."""


class LimitedRangeStream(RangeStream, LimitedStreamReader):
    """A query's source of ranges, batch by batch."""
