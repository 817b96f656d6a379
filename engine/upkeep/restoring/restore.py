"""Restore: restores a cluster to empty brokers, from the remote tier alone.

1. Read the description of the former cluster, its tables, and the last segment of every partition. If anything is
   wrong, the restore ends here and has changed nothing.
2. Format the brokers as a new cluster, with its own id.
3. Write the description of the new cluster. If all brokers are lost after this step, the new cluster can itself be
   restored.
4. Hand the tables over to the new cluster. From now on, the former cluster cannot commit to them.
5. Commit the configs and the topics. Topics keep their ids. Their partitions get leader epochs far above the known
   epochs, and no leaders.
6. Elect leaders uncleanly. On each leader the log begins at the *current* end of the remote log, with the remote
   log's leader epochs and producers (``candidates``). Followers then copy from their leaders.

Every step can be repeated: run an interrupted restore again.

The new cluster has another id because the cluster id in the properties of a table fences the former cluster
(``stratalog.tiering.delta_table``). Topics keep their ids because a table, its folder and its files belong to a
topic id, and the history continues in the same table. All tiered records are restored, and are below the high
watermark. Everything that only brokers hold is lost: offsets of consumer groups, the state of transactions,
records of topics that are not tiered, and snapshots.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec

from stratalog.engine.brokers.bring_up import check_log_not_lost, plan_format
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.config.settings import topic_config
from stratalog.engine.driver.execution import Execution, measured
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.opening import OpenStore, Ports, open_stores
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.description import ClusterDescription, PartitionDescription, TopicDescription
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.partition_commands import AdoptRules
from stratalog.engine.metadata.records import EPOCH_GAP
from stratalog.engine.metadata.topic_commands import AlterConfigs, RestoreTopic
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.state.internal_topics import OPERATIONS_TOPIC
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.restoring.plan import RestorePlan, plan_restore
from stratalog.engine.upkeep.tiering.point import write_description
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import random_id
from stratalog.partitions.records import schema_of
from stratalog.partitions.runner import SerialRunner
from stratalog.partitions.store import Store

_PUTS_OF_BROKER, _GETS_OF_BROKER = 9, 14
"""Requests to check, format, register and probe a root."""
_PER_REPLICA = 5
"""The number of requests per replica, in each of the two price classes: to start the replica at the end of the
remote log, and to list it later.
"""
_COMMITS, _COMMITS_TO_JOIN = 6, 2
"""The number of commits, in addition to one for each broker and one for each topic."""
_LOOKS = 11


def restore(
    file: ClusterFile,
    former: str,
    heir: Callable[[], Ports],
    open_heir: Callable[[], Ports],
    around: Callable[[Ports, Callable[[], Report]], Report],
    *,
    opener: OpenStore,
    clock: Clock,
    key: ClusterKey | None,
    dry_run: bool,
) -> Report:
    """Run all steps: the brokers of ``file``, which ``heir`` formats, replace cluster ``former``. ``around`` gets
    a function that does everything after the formatting, and must call this function. A dry run reads brokers
    that are already formatted through ``open_heir``. If a topic cannot be restored, the report has a failure, and
    nothing is changed.

    Raises: InvalidCallError for wrong arguments; see ``plan_restore``; errors from ``heir`` and ``open_heir``.
    """
    if former == file.cluster_id:
        raise InvalidCallError(
            f"cluster file {file.path}: the restored cluster needs an id other than {former!r}, so "
            "that the two clusters can be distinguished in the remote tier"
        )
    if file.remote is None:
        raise InvalidCallError(
            f"cluster file {file.path} has no [cluster] remote: name the remote tier to restore from"
        )
    remote = opener(file.remote, file.remote_storage, clock)
    if dry_run:
        sends = Planned(_storage(file, remote, opener, clock))
        roots = plan_format(file, sends.storage.stores)
        plan = plan_restore(file, remote, former, clock, key)
        formatted = any(row["plan"] != "format" for row in roots.rows if row["broker"] in file.voters)
        if not roots.failures and formatted and check_log_not_lost(file, sends.storage.stores):
            check_target(open_heir().metadata.image(), plan)
        _send(sends, file, plan)
        planned = _planned(plan, dry_run)
        failures = [*roots.failures, *planned.failures]
        return replace(planned, failures=failures, estimate=None if failures else sends.estimate())
    plan = plan_restore(file, remote, former, clock, key)
    if plan.failures:
        return _planned(plan, dry_run)
    ports = heir()

    def take_over_and_bring_back() -> Report:
        with measured(ports.clock, ports.storage.counts) as measure:
            check_target(ports.metadata.image(), plan)
            take_over(ports.metadata, ports.storage, ports.clock, plan, former)
            # Plan again, because the former cluster could still commit to the tables until they were taken over.
            latest = plan_restore(file, remote, former, clock, key)
            report = _planned(latest, False) if latest.failures else bring_back(*ports.all, latest)
        return replace(report, seconds=measure.seconds, counts=measure.counts)

    return around(ports, take_over_and_bring_back)


def _storage(file: ClusterFile, remote: Store, opener: OpenStore, clock: Clock) -> Storage:
    return Storage(
        file=file,
        stores=open_stores(file, clock, opener),
        remote=remote,
        table_clock=clock,
        new_id=random_id,
        rng=random.Random(),
        threads=SerialRunner(),
    )


def restored_description(plan: RestorePlan, cluster_id: str) -> ClusterDescription:
    """The description of the restored cluster: the topics of the former cluster, with greater leader epochs."""
    topics = tuple(
        msgspec.structs.replace(
            topic,
            partitions=tuple(
                PartitionDescription(one.leader_epoch + EPOCH_GAP, one.log_start_offset)
                for one in topic.partitions
            ),
        )
        for topic in plan.topics
    )
    return msgspec.structs.replace(plan.description, cluster_id=cluster_id, topics=topics)


def check_target(image: ClusterImage, plan: RestorePlan) -> None:
    """Check that the target cluster has no topics, except topics that an earlier attempt has restored.

    Raises: InvalidCallError.
    """
    restored = {topic.topic_id for topic in plan.topics}
    foreign = sorted(
        topic.name
        for topic in image.topics.values()
        # this topic has the record of the restore itself
        if topic.topic_id not in restored and topic.name != OPERATIONS_TOPIC
    )
    if foreign:
        raise InvalidCallError(
            f"cluster {image.cluster_id!r} already has topics ({', '.join(foreign[:3])}): restore to brokers "
            "without topics"
        )


def take_over(metadata: MetadataClient, storage: Storage, clock: Clock, plan: RestorePlan, former: str) -> None:
    """Steps 3 and 4. Raises: see ``hand_over``."""
    from stratalog.tiering.delta_table import hand_over  # imported here, because it loads delta-rs

    remote = storage.remote_store("a cluster is restored from the remote tier")
    description = restored_description(plan, storage.file.cluster_id)
    write_description(remote, description, 0, storage.key, lambda: metadata.image().next_offset)
    for topic in plan.topics:
        if topic.topic_id in plan.tiered:
            table = storage.remote_table(as_image(topic))
            options = storage.file.remote_storage
            if not hand_over(table, former, storage.file.cluster_id, options, clock):
                # Create the missing table; otherwise the former cluster might still create it.
                table.ensure(schema_of(topic.key_schema, topic.value_schema))
        if topic_config(topic.configs, description.configs).snapshot_table:
            published = storage.snapshot_table(as_image(topic))
            hand_over(published, former, storage.file.cluster_id, storage.file.remote_storage, clock)


def bring_back(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, plan: RestorePlan
) -> Report:
    """Steps 5 and 6, on a cluster that owns the tables.

    Raises: errors of the commands.
    """
    with execution.run("restore") as run:
        metadata.submit(AlterConfigs(None, dict(plan.description.configs)))
        factors = {topic.name: metadata.submit(RestoreTopic(topic)) for topic in plan.topics}
        if names := list(factors):
            run.failures += elect(metadata, storage, execution, names, unclean=True).failures
            for topic in plan.topics:
                rules = tuple((one.partition, one.rule) for one in plan.of(topic) if one.rule is not None)
                if rules:
                    metadata.submit(AdoptRules(topic.topic_id, rules, execution.clock.now_ms()))
            run.failures += replicate(metadata, storage, execution, memory, names).failures
    run.add(msgspec.structs.replace(one.row, replicas=factors[one.topic.name]) for one in plan.partitions)
    run.totals |= plan.totals
    run.notes += [
        *plan.notes,
        *(
            f"{topic.name} has {factors[topic.name]} replicas, not {topic.replication_factor}: the "
            "cluster does not have enough brokers"
            for topic in plan.topics
            if factors[topic.name] < topic.replication_factor
        ),
    ]
    return run.report()


def _planned(plan: RestorePlan, dry_run: bool) -> Report:
    """The report of a restore that changes nothing, because it is a dry run or has failures."""
    run = OperationRun("restore", dry_run, failures=[*plan.failures], notes=[*plan.notes], totals=plan.totals)
    run.add(one.row for one in plan.partitions)
    return run.report()


def as_image(topic: TopicDescription) -> TopicImage:
    """The topic without its partitions."""
    return TopicImage(
        name=topic.name,
        topic_id=topic.topic_id,
        key_schema=topic.key_schema,
        value_schema=topic.value_schema,
        configs=topic.configs,
    )


def _send(sends: Planned, file: ClusterFile, plan: RestorePlan) -> None:
    """Add the requests that a dry run does not send: the formatting of the brokers, the commits of the topics, a
    second plan, and the first replicate. Requests that delta-rs sends for the tables are not counted. The numbers
    were counted with stores in memory.
    """
    stores = sends.storage.stores
    brokers, voters = len(file.brokers), file.voters
    copied = any(min(topic.replication_factor, brokers) > 1 for topic in plan.topics)
    commits = _COMMITS + brokers + len(plan.topics) + copied * _COMMITS_TO_JOIN
    for voter in voters:
        sends.send(stores.get(voter), puts=2 * commits, gets=commits)
    for voter in voters[: len(voters) // 2 + 1]:
        looks = _LOOKS + 2 * brokers
        sends.send(stores.get(voter), puts=looks, gets=looks)
    for store in stores.values():
        sends.send(store, puts=_PUTS_OF_BROKER, gets=_GETS_OF_BROKER)
    for one in plan.partitions:
        for store in list(stores.values())[: one.topic.replication_factor]:
            sends.send(store, puts=_PER_REPLICA, gets=_PER_REPLICA)
    tiered, read = len(plan.tiered), sum(bool(one.segments) for one in plan.partitions)
    sends.send(sends.storage.remote, puts=4 + 6 * tiered, gets=1 + 3 * tiered + 2 * read)
