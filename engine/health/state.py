"""Consumer groups and transactions, from those partitions of the engine's own topics that hold anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import Sight
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.records.groups import lag_rows, list_leaders, named
from stratalog.engine.records.state_log import read_state
from stratalog.engine.state.consumer_offsets import GroupState
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from stratalog.engine.state.keyed import OFFSETS, TRANSACTIONS
from stratalog.engine.state.transaction_state import ENDING, State, Transaction


def _used(sight: Sight, topic: str) -> list[PartitionView]:
    """The partitions of a topic of the engine whose leaders' folders hold anything."""
    return [
        seen.view
        for seen in sight.partitions
        if seen.view.topic == topic and seen.leader is not None and (seen.leader.data or seen.leader.checkpoints)
    ]


def group_findings(
    context: Context, sight: Sight, run: OperationRun
) -> tuple[list[HealthFinding], dict[tuple[str, str], int]]:
    """Groups that are further behind than ``health.consumer.max.lag.records``. The look tells the high watermarks,
    as far as names do, and so the lags by group and topic; logs of those over the limit are listed.
    """
    outcomes = context.threads.run(lambda view: read_state(context, view, OFFSETS), _used(sight, OFFSETS_TOPIC))
    groups = {
        name: one for _, read in run.done(outcomes, context.replicas) for name, one in read.state.groups.items()
    }
    marks = {
        (seen.view.topic, seen.view.partition): max((mark.offset for mark in seen.leader.watermarks), default=0)
        for seen in sight.partitions
        if seen.leader is not None
    }
    lags = {name: _lags(sight, group, marks) for name, group in groups.items()}
    limit = sight.config.health_consumer_max_lag_records
    over = {name: groups[name] for name, found in lags.items() if 0 <= limit < max(found.values(), default=0)}
    findings: list[HealthFinding] = []
    if over:
        leaders, unlisted = list_leaders(context, sight.image, over.values())
        run.failures += unlisted
        for name, group in sorted(over.items()):
            by_topic: dict[str, int] = {}
            for row in lag_rows(sight.image, group, leaders):
                by_topic[str(row["topic"])] = by_topic.get(str(row["topic"]), 0) + int(row["lag"] or 0)
            late = [f"{lag:,} records of {topic}" for topic, lag in sorted(by_topic.items()) if lag > limit]
            if late:
                findings.append(
                    HealthFinding(
                        severity=Severity.ERROR,
                        kind="records-lag-max",
                        subjects=(name,),
                        what=f"it has not processed {', '.join(late)}; the limit is {limit:,} "
                        "(health.consumer.max.lag.records). Start its consumers, or more of them",
                        do=sight.commands("groups", "describe", name),
                    )
                )
    return findings, {(name, topic): lag for name, found in lags.items() for topic, lag in found.items()}


def _lags(sight: Sight, group: GroupState, marks: dict[tuple[str, int], int]) -> dict[str, int]:
    """By topic: the records behind what the group has committed."""
    found: dict[str, int] = {}
    for (topic, partition), record in named(sight.image, group):
        lag = max(0, marks.get((topic, partition), 0) - record.offset)
        found[topic] = found.get(topic, 0) + lag
    return found


def transaction_findings(
    context: Context, sight: Sight, run: OperationRun
) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """Transactions that have run into their timeout, and those that were decided that long ago and have not ended:
    readers of committed records wait behind them.
    """
    views = _used(sight, TRANSACTIONS_TOPIC)
    outcomes = context.threads.run(lambda view: read_state(context, view, TRANSACTIONS), views)
    reads = run.done(outcomes, context.replicas)
    late = [one for _, read in reads for one in _late(read.state.transactions.values(), sight.now_ms)]
    partitions = {key for one, _ in late for key in one.partitions}
    findings = [
        HealthFinding(
            severity=Severity.ERROR if sight.now_ms - since_ms > sight.max_delay_ms else Severity.WARNING,
            kind="PartitionsWithLateTransactionsCount",
            subjects=(one.transactional_id,),
            what="its transaction was abandoned: readers of committed records wait for its end",
            do=sight.commands("transactions", "finish"),
            since_ms=since_ms,
        )
        for one, since_ms in late
    ]
    return findings, {"PartitionsWithLateTransactionsCount": len(partitions)}


def _late(found: Iterable[Transaction], now_ms: int) -> Iterator[tuple[Transaction, int]]:
    """Those whose time is over, and since when."""
    for one in found:
        if one.state is State.ONGOING:
            since_ms = (one.start_ms or 0) + one.timeout_ms
        elif one.state in (State.PREPARE_EPOCH_FENCE, *ENDING):
            since_ms = one.update_ms + one.timeout_ms
        else:
            continue
        if now_ms > since_ms:
            yield one, since_ms
