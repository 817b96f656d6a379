"""Bootstrap: brokers that are new, or lost their storage, get their replicas (KIP-1023).

    1. format the roots where needed, and register them: another root is another incarnation (KIP-903)
    2. where asked for, commit that they shall hold replicas of topics, too, or in place of another broker
    3. replicate to them: from the earliest pending upload offset on, where
       ``follower.fetch.last.tiered.offset.enable`` is set and that is possible; then they join the ISR
    4. while the remote is not ready for one of them, 3 again, a few times, with growing pauses (KIP-1023,
       "ReplicaFetcher Changes": "the partition can be retried after some time")
The next ``replicate`` goes on with the rest when the run ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratalog.engine.brokers.bring_up import format_roots, register_brokers
from stratalog.engine.brokers.probe import entry
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.metadata.partition_commands import RefusedPartition
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.engine.metadata.reassignment_plan import ReplicaChange
from stratalog.engine.upkeep.replication.reassign import plan_replicas
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.tiering.remote_logs import load_remotes
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.errors import InvalidCallError, RemoteNotReadyError
from stratalog.partitions.identity import TopicPartition

RETRIES = 4
_BACKOFF = Backoff(first_s=1.0, longest_s=8.0, least=1.0)
"""From Kafka's replica.fetch.backoff.ms on."""


def bootstrap(
    context: Context,
    brokers: Sequence[int],
    topics: Sequence[str] | None = None,
    *,
    add: bool = False,
    instead_of: int | None = None,
    trust_copy: bool = False,
    dry_run: bool = False,
) -> Report:
    """Format and register these brokers' roots where needed, then bring their replicas of the topics (all when
    None) into the ISR. ``add``: they get replicas of all partitions of the topics. ``instead_of``: the one broker
    gets those of that other one, which then has none. With ``trust_copy`` nothing is formatted, and the roots are
    registered as what they are copies of.

    The report says per partition ``copied_bytes``; ``avoided_bytes``, which the leader holds too and a follower
    that begins at the leader's first local offset would have copied besides; ``remote_bytes``, which lie in the
    remote tier; and when the followers joined the ISR, in seconds from the beginning.

    Raises: as ``format_roots``; InvalidCallError, UnknownTopicOrPartitionError; errors of reading the metadata.
        Everything else is a failure of its partition in the report.
    """
    change = _change(context, brokers, topics, add, instead_of)
    with context.run("bootstrap", dry_run=dry_run) as run:
        if not dry_run:
            if not trust_copy:
                format_roots(context.file, context.stores, brokers, context.new_id, context.key)
            run.failures += register_brokers(context, brokers, trust_copy=trust_copy).failures
        if change is not None:
            _assign(context, topics, change, run)
        copied = _replicate(context, topics, brokers, dry_run)
    remote_bytes = _remote_bytes(context, topics)
    run.rows += [
        {**row, "remote_bytes": remote_bytes.get((str(row["topic"]), int(row["partition"] or 0)), 0)}
        for row in copied.rows
    ]
    run.totals |= {**copied.totals, "remote_bytes": sum(int(row["remote_bytes"] or 0) for row in run.rows)}
    run.failures += copied.failures
    run.notes += copied.notes
    return run.report()


def _change(
    context: Context, brokers: Sequence[int], topics: Sequence[str] | None, add: bool, instead_of: int | None
) -> ReplicaChange | None:
    """Raises: InvalidCallError, UnknownBrokerError; nothing is changed then."""
    for broker in brokers:
        entry(context.file, broker)
    context.topics(context.metadata.image(), topics)
    if add and topics is None:
        raise InvalidCallError("replicas of which topics shall be added? name them")
    if instead_of is None:
        return ReplicaChange(add=tuple(brokers)) if add else None
    if add or len(brokers) != 1 or instead_of in brokers:
        raise InvalidCallError(
            f"brokers {list(brokers)} instead of {instead_of}: one broker takes the place of one other"
        )
    return ReplicaChange(move={instead_of: brokers[0]})


def _assign(
    context: Context,
    topics: Sequence[str] | None,
    change: ReplicaChange,
    run: OperationRun,
) -> None:
    """Commit the new replicas; newcomers are joining until they are in the ISR."""
    image = context.metadata.image()
    requests = tuple(
        Reassignment(image.topic_ids[topic], partition, target=tuple(replicas))
        for (topic, partition), replicas in plan_replicas(context, topics, change).items()
    )
    if not requests or run.dry_run:
        return
    for answer in context.metadata.submit(AlterPartitionReassignments(requests)):
        if isinstance(answer, RefusedPartition):
            name = image.topics[answer.topic_id].name
            run.fail(f"{name}-{answer.partition}", answer.error)


def _replicate(context: Context, topics: Sequence[str] | None, brokers: Sequence[int], dry_run: bool) -> Report:
    """Steps 3 and 4; the failures are those of the last time."""
    began_s = context.clock.monotonic_s()
    found = replicate(context, topics, brokers=brokers, dry_run=dry_run)
    for retry in range(1, RETRIES + 1):
        if all(failure.code != RemoteNotReadyError.code for failure in found.failures):
            break
        context.clock.sleep(_BACKOFF.pause_s(retry))
        later_s = context.clock.monotonic_s() - began_s
        found = _both(found, replicate(context, topics, brokers=brokers), later_s)
    return found


def _both(first: Report, second: Report, later_s: float) -> Report:
    """Two runs as one; the second began ``later_s`` seconds after the first."""
    before = {(row["topic"], row["partition"]): row for row in first.rows}
    counted = ("copied_files", "copied_bytes", "avoided_bytes")
    rows: list[dict[str, Value]] = []
    for now in second.rows:
        row = dict(now)
        joined_s = row["joined_s"]
        if joined_s is not None:
            row["joined_s"] = round(float(joined_s) + later_s, 3)
        earlier = before.get((row["topic"], row["partition"]))
        if earlier is not None:
            row |= {column: int(row[column] or 0) + int(earlier[column] or 0) for column in counted}
            row["joined_s"] = row["joined_s"] if earlier["joined_s"] is None else earlier["joined_s"]
        rows.append(row)
    sums = {column: sum(int(row[column] or 0) for row in rows) for column in ("copied_bytes", "avoided_bytes")}
    notes = list(dict.fromkeys([*first.notes, *second.notes]))
    return replace(second, rows=rows, totals={**second.totals, **sums}, notes=notes)


def _remote_bytes(context: Context, topics: Sequence[str] | None) -> dict[TopicPartition, int]:
    image = context.metadata.image()
    chosen = context.topics(image, topics)
    telling = OperationRun("bootstrap")  # what fails has failed before: it is not told again
    remotes = load_remotes(context, image, chosen, telling)
    return {
        (image.topics[topic_id].name, partition): remote.bytes_of(partition)
        for topic_id, remote in remotes.items()
        for partition in remote.segments
    }
