"""The transactions of a cluster: ``cluster.transactions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.engine.cluster.arguments import TopicNames, names, topic_first
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.records import transactions as admin
from stratalog.engine.records.bad_record_lane import OnBadRecord, bad_record_policy
from stratalog.engine.records.transact import TIMEOUT_MS, BatchTransaction, partitions_of, partitions_of_bad
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.unknown_fields import OnUnknownField, unknown_field_policy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class OpenTransaction(BatchTransaction):
    """One transaction of a transactional id, for one thread: appends of frames and batches, and offsets of groups.
    The end of its ``with`` block commits the transaction; an exception aborts it, and propagates."""

    def append(
        self,
        topic: str,
        frame: DataFrame,
        *,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
        order_by: Sequence[str] | str = (),
    ) -> Report:
        """Append all rows of a DataFrame, like ``Cluster.append``. All partitions of the topic join the
        transaction, because the partitions of the rows are not known in advance. Bad records that go to a topic
        are part of the transaction.

        Raises: see ``append_frame`` and ``append_batches``.
        """
        topic_first("append", topic, frame)
        from stratalog.engine.spark.append_frame import append_frame, check_frame
        from stratalog.engine.spark.appending import RecordColumns

        check_frame(topic, frame)
        check_not_internal(topic, "append to")
        bad = bad_record_policy(on_bad_record, bad_record_topic, topic)
        policy = unknown_field_policy(on_unknown_field)
        image = self._look()
        with self._appending(image, partitions_of(image.topic(topic)) | partitions_of_bad(image, bad)):
            return self._appended(
                append_frame(
                    *(self._metadata, self._storage, self._execution, self._memory),
                    topic,
                    frame,
                    RecordColumns(key, value, partition, headers, timestamp),
                    self._who(),
                    order_by=names(order_by) or (),
                    bad_records=bad,
                    on_unknown_field=policy,
                    probed=image,
                ),
                image,
            )


class Transactions:
    """The transactions of a cluster: begin, list, end and repair them.

        with cluster.transactions.begin("loader-1") as t:
            t.append("trips", trips, key="id")
            t.append("totals", totals, key="day")
            t.commit_offsets("loader", {("raw", 0): 1000})
        cluster.transactions.list().rows

    The end of the ``with`` block commits the transaction; an exception aborts it.
    """

    def __init__(self, ports: Ports) -> None:
        """Use ``Cluster.transactions``."""
        self._ports = ports

    def __repr__(self) -> str:
        return "The transactions of a cluster: list() shows them, begin(id) starts one"

    def begin(self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> OpenTransaction:
        """Begin a transaction. Its appends (to any topics) and its consumer-group offsets take effect together, or
        not at all. A later transaction of the same transactional id, or the timeout, fences and aborts this
        transaction.

        Raises: InvalidCallError, InvalidTransactionTimeoutError; ConcurrentTransactionsError if an earlier
            transaction of the id cannot be completed now.
        """
        return OpenTransaction(*self._ports.all, transactional_id, timeout_ms)

    def list(self) -> Report:
        """List every transactional id with its transaction."""
        return admin.list_transactions(*self._ports.all)

    def describe(self, transactional_id: str) -> Report:
        """Show the partitions of a transaction, and the transaction's first offset in each partition.

        Raises: TransactionalIdNotFoundError.
        """
        return admin.describe_transaction(*self._ports.all, transactional_id)

    def find_hanging(self, topics: TopicNames = None) -> Report:
        """List transactions whose end marker was lost in an unclean election. No producer will end these
        transactions (KIP-664)."""
        return admin.hanging_transactions(*self._ports.all, names(topics))

    @operation("transactions abort")
    def abort(self, transactional_id: str, *, dry_run: bool = False, check: bool = True) -> Report:
        """Abort the open transaction of an id, and fence its producer. If the transaction hangs in a partition's
        log, write the missing marker there.

        Args:
            transactional_id: a transactional id, or a producer id
        """
        return admin.abort_transaction(*self._ports.all, transactional_id, dry_run=dry_run)

    @operation("transactions finish")
    def finish(self, *, dry_run: bool = False, check: bool = True) -> Report:
        """Abort transactions that have timed out, complete transactions whose outcome is decided, and delete
        unused ids."""
        return admin.finish_transactions(*self._ports.all, dry_run=dry_run)
