"""The records of one replica for a reader of an isolation level, computed by the pure functions of ``partitions``
alone.
"""

from __future__ import annotations

import pyarrow as pa

from stratalog.partitions.isolation import Isolation
from stratalog.partitions.replica import Replica
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.transactions import transactions_of, visible


def seen(replica: Replica, isolation: Isolation = Isolation.READ_COMMITTED) -> list[str]:
    """The values, in offset order."""
    log = replica.log()
    transactions = transactions_of(log, replica.footer)
    hidden, end = transactions.hidden(isolation), transactions.end(isolation, log)
    values: list[str] = []
    for link in log.chain:
        if link.name in hidden or link.start >= end:
            continue
        rows = pa.Table.from_batches(read_batches(replica.store, link.file, link.start, min(link.end, end)))
        rows = visible(rows, isolation) if link.name.merged else rows
        values += [value.decode() for value in rows.column("value").to_pylist()]
    return values
