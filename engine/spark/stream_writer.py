"""``df.writeStream.foreachBatch(writer)``: appends the batches of a stream, of any size, from executors.
``stream_sink`` describes how each record is appended exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from stratalog.engine.driver.opening import Ports, open_driver
from stratalog.engine.driver.report import Report
from stratalog.engine.records.append import check_producer, who_appends
from stratalog.engine.records.bad_record_lane import LeaveOut
from stratalog.engine.spark.append_frame import append_frame
from stratalog.engine.spark.appending import RecordColumns
from stratalog.engine.spark.stream_query import query_of_server, query_of_thread
from stratalog.engine.spark.stream_sink import query_producer, report_bad_records, with_remedy
from stratalog.partitions.printable import printable
from stratalog.partitions.producers import OnChangedReplay
from stratalog.partitions.unknown_fields import OnUnknownField


class StreamWriter:
    """Appends the batches of a stream: ``df.writeStream.foreachBatch(writer)``."""

    def __init__(
        self,
        ports: Ports,
        topic: str,
        columns: RecordColumns,
        *,
        producer: str,
        producer_epoch: int | None = None,
        acks: str = "all",
        on_changed_replay: OnChangedReplay = "refuse",
        bad_records: LeaveOut | None = None,
        on_unknown_field: OnUnknownField = "fail",
        order_by: Sequence[str] = (),
        checkpoint: str | None = None,
    ) -> None:
        """See ``Cluster.stream_writer``. Raises: InvalidCallError for a producer without a name."""
        self._opened: Ports | None = ports
        self._file = ports.storage.file
        self._driver_only = ports.execution.driver_only
        self._checkpoint = checkpoint
        self._query_id: str | None = None
        self._topic = topic
        self._columns = columns
        self._producer = check_producer(producer)
        self._producer_epoch = producer_epoch
        self._acks = acks
        self._on_changed_replay = on_changed_replay
        self._bad_records = bad_records
        self._on_unknown_field = on_unknown_field
        self._order_by = tuple(order_by)

    def __repr__(self) -> str:
        arguments = f"topic {self._topic!r}, producer {self._producer!r}, acks={self._acks!r}"
        return printable(f"StreamWriter({arguments}): df.writeStream.foreachBatch(it)")

    def __getstate__(self) -> dict[str, object]:
        """The writer for a session of Spark Connect. Spark Connect runs the writer of each query in a separate
        process next to the server. That process opens the cluster with the key of its own environment.
        """
        return {**self.__dict__, "_opened": None, "_query_id": None}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append a batch.

        Raises: errors that end the query; the next run appends the batch, once. See ``append``;
            OperationFailedError.
        """
        report_bad_records(self.append(batch, batch_id), f"batch {batch_id}")

    def append(self, batch: DataFrame, batch_id: int, *, check: bool = True) -> Report:
        """Append a batch, and return the report: partitions that already have the batch are ``duplicate``.

        Raises: OperationFailedError, unless ``check=False``; see ``append_frame``.
        """
        if self._opened is None:
            self._query_id = query_of_server(batch.sparkSession, self._checkpoint)
            self._opened = open_driver(self._file)
            self._opened.execution.driver_only = self._driver_only
        query_id = self._query_id or query_of_thread(batch.sparkSession)
        who = who_appends(
            query_producer(self._producer, query_id),
            batch_id,
            self._producer_epoch,
            on_changed_replay=self._on_changed_replay,
        )
        report = append_frame(
            *self._opened.all,
            self._topic,
            batch,
            self._columns,
            who,
            acks=self._acks,
            order_by=self._order_by,
            bad_records=self._bad_records,
            on_unknown_field=self._on_unknown_field,
        )
        report = with_remedy(report, batch_id)
        return report.raise_for_failures() if check else report
