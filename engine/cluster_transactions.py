"""The cluster as one object: transactions."""

from __future__ import annotations

from engine.cluster_state import Topics, names
from engine.context import Context
from engine.operations.transactions import admin
from engine.operations.transactions.transact import TIMEOUT_MS, OpenTransaction
from engine.report import Report


class TransactionsOfCluster:
    """A part of ``engine.cluster.Cluster``."""

    _context: Context

    def transaction(self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> OpenTransaction:
        """Begin a transaction: appends to any topics, and offsets of consumer groups, which count all together or
        not at all.

            with cluster.transaction("loader-1") as t:
                t.append(trips, "trips", key="id")
                t.append(totals, "totals", key="day")
                t.commit_offsets("loader", {("raw", 0): 1000})

        Whoever begins one with the same transactional id later fences this one, and aborts it; so does its
        timeout.

        Raises: InvalidCallError, InvalidTransactionTimeoutError; ConcurrentTransactionsError when an earlier one
            of the id cannot be completed at present.
        """
        return OpenTransaction(self._context, transactional_id, timeout_ms)

    def transactions(self) -> Report:
        """Every transactional id and its transaction, as a table."""
        return admin.list_transactions(self._context)

    def describe_transaction(self, transactional_id: str) -> Report:
        """The partitions of a transaction, and where it begins in each. Raises: TransactionalIdNotFoundError."""
        return admin.describe_transaction(self._context, transactional_id)

    def hanging_transactions(self, topics: Topics = None) -> Report:
        """Transactions that are open in a log, and that nobody will end: an unclean election has lost a marker
        (KIP-664)."""
        return admin.hanging_transactions(self._context, names(topics))

    def abort_transaction(self, transactional_id: str, *, dry_run: bool = False) -> Report:
        """Abort the open transaction of an id, and fence its producer; where it hangs in a log, end it there."""
        return admin.abort_transaction(self._context, transactional_id, dry_run=dry_run)

    def finish_transactions(self, *, dry_run: bool = False) -> Report:
        """Abort what has run into its timeout, complete what was decided, forget ids that nobody uses."""
        return admin.finish_transactions(self._context, dry_run=dry_run)
