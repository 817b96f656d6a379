"""Bootstrap: copies replicas to brokers that are new, or that lost their storage (KIP-1023).

    1. format roots if necessary, and register them: a new root is another incarnation (KIP-903)
    2. if requested, commit additional replicas of topics on these brokers, or the replacement of a broker by one
       of these brokers
    3. replicate to these brokers; then the replicas join the ISR. If ``follower.fetch.last.tiered.offset.enable``
       is set, the replicas start at the earliest pending upload offset if possible
    4. while the remote tier is not ready for some replica, repeat step 3 a few times, with growing pauses
       (KIP-1023, "ReplicaFetcher Changes": "the partition can be retried after some time")
If the run ends early, the next ``replicate`` continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from stratalog.engine.brokers.bring_up import format_roots, plan_registration, register_brokers
from stratalog.engine.brokers.probe import entry, plan_probe
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.engine.metadata.reassignment_plan import ReplicaChange, plan_change
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.replication.planned import ReplicatePlanRow, plan_copies
from stratalog.engine.upkeep.replication.replicate import ReplicateRow, plan, replicate
from stratalog.engine.upkeep.tiering.remote_logs import ask_for_logs
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.errors import InvalidCallError, RemoteNotReadyError, StratalogError
from stratalog.partitions.identity import TopicIdPartition, TopicPartition
from stratalog.partitions.runner import Done

RETRIES = 4
_BACKOFF = Backoff(first_s=1.0, longest_s=8.0, least=1.0)
"""The pauses between attempts. The first pause is Kafka's replica.fetch.backoff.ms."""


class BootstrapPlanRow(ReplicatePlanRow, frozen=True, kw_only=True):
    remote_bytes: int | None
    """None if the remote log cannot be read."""


class BootstrapRow(ReplicateRow, frozen=True, kw_only=True):
    remote_bytes: int | None
    """None if the remote log cannot be read."""


def bootstrap(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    brokers: Sequence[int],
    topics: Sequence[str] | None = None,
    *,
    add: bool = False,
    instead_of: int | None = None,
    trust_copy: bool = False,
    dry_run: bool = False,
) -> Report:
    """Format and register these brokers' roots if necessary, then bring their replicas of the topics (None: all)
    into the ISR. ``add``: the brokers get replicas of all partitions of the topics. ``instead_of``: the given
    broker replaces broker ``instead_of``, which then has no replicas. With ``trust_copy`` nothing is formatted,
    and each root is registered as the original from which it was copied.

    For each partition, the report has ``copied_bytes``; ``remote_bytes``, the bytes in the remote tier; and
    ``joined_s``, the time when the followers joined the ISR, in seconds from the start. ``avoided_bytes`` is the
    number of local bytes of the leader that were not copied, because a follower did not start at the leader's
    first local offset.

    Raises: see ``format_roots``; InvalidCallError, UnknownTopicOrPartitionError; errors of the metadata before a
        root is formatted. Any other error is a failure of its partition, or of the metadata, in the report.
    """
    change = _change(metadata, storage, brokers, topics, add, instead_of)
    rows: Sequence[ReplicateRow | ReplicatePlanRow]
    with execution.run("bootstrap", dry_run=dry_run) as run:
        if dry_run:
            rows = _plan(metadata, storage, execution, topics, brokers, change, trust_copy, run)
        else:
            if not trust_copy:
                format_roots(storage.file, storage.stores, brokers, storage.new_id, storage.key)
            run.failures += register_brokers(metadata, storage, execution, brokers, trust_copy=trust_copy).failures
            rows = ()
            with run.still_reporting():
                if change is not None:  # new replicas have the state *joining* until they are in the ISR
                    run.commit(metadata, *_assignment(metadata.image(), topics, change))
                rows = _replicate(metadata, storage, execution, memory, topics, brokers, run)
    remote_bytes: defaultdict[TopicPartition, int | None] = defaultdict(lambda: None)
    with run.still_reporting():
        remote_bytes = defaultdict(int, _remote_bytes(metadata, storage, topics))
    kind = BootstrapPlanRow if dry_run else BootstrapRow
    run.add(
        kind(**msgspec.structs.asdict(row), remote_bytes=remote_bytes[row.topic, row.partition]) for row in rows
    )
    run.totals["partitions"] = len(run.rows)
    run.total(*(("files", "bytes") if dry_run else ("copied_bytes", "avoided_bytes")), "remote_bytes")
    if any(row["remote_bytes"] is None for row in run.rows):
        run.totals["remote_bytes"] = None
    return run.report()


def _change(
    metadata: MetadataClient,
    storage: Storage,
    brokers: Sequence[int],
    topics: Sequence[str] | None,
    add: bool,
    instead_of: int | None,
) -> ReplicaChange | None:
    """The requested change of replicas, if any. Raises: InvalidCallError, UnknownBrokerError. If it raises any of
    these, nothing was changed.
    """
    for broker in brokers:
        entry(storage.file, broker)
    chosen_topics(metadata.image(), topics)
    if add and topics is None:
        raise InvalidCallError("name the topics whose replicas to add")
    if instead_of is None:
        return ReplicaChange(add=tuple(brokers)) if add else None
    if add or len(brokers) != 1 or instead_of in brokers:
        raise InvalidCallError(
            f"brokers {list(brokers)} instead of {instead_of}: give exactly one broker to replace another"
        )
    return ReplicaChange(move={instead_of: brokers[0]})


def _plan(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None,
    brokers: Sequence[int],
    change: ReplicaChange | None,
    trust_copy: bool,
    run: OperationRun,
) -> list[ReplicatePlanRow]:
    """The rows and the estimate of a dry run. The plan assumes that the brokers are registered and have their new
    replicas, and that the other brokers were probed.
    """
    sends = Planned(storage)
    before = metadata.image()
    image, new, failures = plan_registration(sends, before, brokers, trust_copy=trust_copy)
    run.failures += failures
    if image is not before:
        metadata.check_may_commit()
    if change is not None:
        command, names = _assignment(image, topics, change)
        sends.send_look(image, times=2)
        if command.reassignments:
            metadata.check_may_commit()
            sends.send_commit(image)
        decision = command.decide(image)
        run.refuse(decision.answer, names)
        image = decision.image_after(image)
    image = plan_probe(metadata, storage, run, image, new)
    for broker in new:
        sends.send(storage.stores[broker], gets=1)
    works = plan(storage, execution, image, topics, None, brokers, run)
    rows = plan_copies(sends, image, works, run, new)
    run.estimate = sends.estimate()
    return rows


def _assignment(
    image: ClusterImage, topics: Sequence[str] | None, change: ReplicaChange
) -> tuple[AlterPartitionReassignments, dict[TopicIdPartition, str]]:
    """The command that assigns the new replicas, and the names of its partitions."""
    named = [topic.name for topic in chosen_topics(image, topics)]
    requests = tuple(
        Reassignment(image.topic_ids[topic], partition, target=tuple(replicas))
        for (topic, partition), replicas in plan_change(image, named, change).items()
    )
    names = {
        TopicIdPartition(one.topic_id, one.partition): f"{image.topics[one.topic_id].name}-{one.partition}"
        for one in requests
    }
    return AlterPartitionReassignments(requests), names


def _replicate(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None,
    brokers: Sequence[int],
    run: OperationRun,
) -> list[ReplicateRow]:
    """Steps 3 and 4. Only the failures of the last attempt are reported."""
    began_s = execution.clock.monotonic_s()
    report = replicate(metadata, storage, execution, memory, topics, brokers=brokers)
    rows = _rows(report)
    for retry in range(1, RETRIES + 1):
        if all(failure.code != RemoteNotReadyError.code for failure in report.failures):
            break
        run.absorb(replace(report, failures=()))
        execution.clock.sleep(_BACKOFF.pause_s(retry))
        later_s = execution.clock.monotonic_s() - began_s
        try:
            report = replicate(metadata, storage, execution, memory, topics, brokers=brokers)
        except StratalogError as error:
            run.fail("metadata", error)
            break
        rows = {key: _after(rows.get(key), row, later_s) for key, row in _rows(report).items()}
    run.absorb(report)
    return [*rows.values()]


def _rows(report: Report) -> dict[TopicPartition, ReplicateRow]:
    rows = (msgspec.convert(row, ReplicateRow) for row in report.rows)
    return {(row.topic, row.partition): row for row in rows}


def _after(before: ReplicateRow | None, now: ReplicateRow, later_s: float) -> ReplicateRow:
    """The combined result of two runs; the second run began ``later_s`` seconds after the first run."""
    joined_s = None if now.joined_s is None else round(now.joined_s + later_s, 3)
    if before is None:
        return msgspec.structs.replace(now, joined_s=joined_s)
    return msgspec.structs.replace(
        now,
        copied_files=before.copied_files + now.copied_files,
        copied_bytes=before.copied_bytes + now.copied_bytes,
        avoided_bytes=before.avoided_bytes + now.avoided_bytes,
        joined_s=joined_s if before.joined_s is None else before.joined_s,
    )


def _remote_bytes(
    metadata: MetadataClient, storage: Storage, topics: Sequence[str] | None
) -> dict[TopicPartition, int | None]:
    """The sizes of the partitions in the remote tier; None if the remote log of a tiered topic cannot be read."""
    image = metadata.image()
    found: dict[TopicPartition, int | None] = {}
    for outcome in ask_for_logs(storage, image, chosen_topics(image, topics)):
        log = outcome.value if isinstance(outcome, Done) else None
        for one in outcome.item.partitions:
            found[outcome.item.name, one.partition] = None if log is None else log.bytes_of(one.partition)
    return found
