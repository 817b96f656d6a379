"""A cluster for transactions: two topics, their records for readers, the state of an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from stratalog.engine.records.transact import BatchTransaction
from stratalog.partitions.isolation import Isolation
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch
from tests.unit.seen import seen

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


class Ledger(LiveCluster):
    """A cluster with the topics ``t`` (two partitions) and ``u``; internal topics of one partition."""

    def begin(self) -> Ledger:
        configs = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
        self.cluster.topics.alter_configs(None, configs)
        self.topic(partitions=2)
        self.topic("u")
        return self

    def seen(self, isolation: Isolation = COMMITTED) -> dict[str, list[str]]:
        """The records of each partition on its leader."""
        wanted = (("t", 0), ("t", 1), ("u", 0))
        return {
            f"{topic}-{partition}": seen(self.replica(self.leader(topic, partition), topic, partition), isolation)
            for topic, partition in wanted
        }

    def state(self, transactional_id: str = "x") -> str:
        return str(self.driver().transactions.describe(transactional_id).totals["state"])


def rows(*values: str) -> Sequence[pa.RecordBatch]:
    return [batch(values)]


def put(transaction: BatchTransaction, values: Mapping[str, str]) -> None:
    """Append one record to each of these partitions, in this order."""
    for where, value in values.items():
        topic, _, partition = where.partition("-")
        transaction.append_batches(topic, {int(partition): rows(value)})


NOTHING: dict[str, list[str]] = {"t-0": [], "t-1": [], "u-0": []}
EVERYTHING = {"t-0": ["a"], "t-1": ["b"], "u-0": ["c"]}
VALUES = {"t-0": "a", "t-1": "b", "u-0": "c"}
