"""The source of a stream with limits: Spark 4.2 and later pass the source the start and the limit of each batch.

Earlier versions lack the base classes, so ``format`` imports this module only in Spark 4.2 and later.
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
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.stream_source import StreamReader


@short_errors
class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """The source of a query, batch by batch."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit from the options. Spark accepts only one limit; ``latestOffset`` applies both."""
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
        """The end of the next batch. Also commits the start of that batch to the group, because all earlier
        records have been processed. (Spark calls ``commit`` only when another batch follows, so the lag would
        never become 0.)
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
        """The end of the log at this trigger, independent of the limit, and how far the end of the batch is behind
        the end of the log. Listeners see both as ``latestOffset`` in the query's progress. (A Python source has no
        metrics in the progress.)
        """
        source = self._open()[0]
        if source.latest_seen is None or source.planned is None:
            return None
        return {**source.latest_seen.to_json(), **source.planned.behind(source.latest_seen)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; ``latestOffset`` has checked its start."""
        return self._slices(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because the next batch commits its start to the group."""


class LimitedRangeStream(RangeStream, LimitedStreamReader):
    """A query's source of ranges, batch by batch."""
