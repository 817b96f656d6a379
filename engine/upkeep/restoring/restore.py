"""Restore: a cluster on empty brokers from the remote tier alone.

    1. read the description of the former cluster, its tables, the last segment of every partition: if anything is
       wrong, the restore ends here, and nothing was changed
    2. format the brokers as another cluster, with an id of its own
    3. write its description, so that it could be restored itself, should all be lost between two of these steps
    4. hand the tables over to it: from here on the former cluster commits nothing any more
    5. commit configs and topics: their old ids, leader epochs far above the known ones, no leaders
    6. elect uncleanly: on each leader, the log begins where the remote log ends *now*, with its leader epochs and
       producers (``candidates``); followers follow
Every step may be repeated: a restore that stopped is run again.

Why another cluster id: the id in the properties of a table is what fences (``stratalog.tiering.delta_table``). Why
the same topic ids: a table, its folder and the files in it belong to a topic id, and the history goes on in them.
Tiered records come back, all below the high watermark. Everything else is lost, and so is all that only brokers
hold: offsets of consumer groups, the state of transactions, records of topics that are not tiered, snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.config.settings import topic_config
from stratalog.engine.driver.execution import Execution, measured
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.opening import OpenStore, Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.description import ClusterDescription, PartitionDescription, TopicDescription
from stratalog.engine.metadata.image import ClusterImage, TopicImage
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
from stratalog.partitions.records import schema_of


def restore(
    file: ClusterFile,
    former: str,
    heir: Callable[[], Ports],
    around: Callable[[Ports, Callable[[], Report]], Report],
    *,
    opener: OpenStore,
    clock: Clock,
    key: ClusterKey | None,
    dry_run: bool,
) -> Report:
    """All steps: the brokers of ``file``, which ``heir`` formats, become what cluster ``former`` was. ``around``
    is given all that follows the format, and calls it. While a topic cannot be restored, which is a failure in
    the report, nothing is changed.

    Raises: InvalidCallError for wrong arguments; as ``plan_restore`` and ``heir``.
    """
    if former == file.cluster_id:
        raise InvalidCallError(
            f"cluster file {file.path}: the restored cluster cannot be {former!r} again: give it another id, "
            "by which the remote tier tells it from what may be left of that one"
        )
    if file.remote is None:
        raise InvalidCallError(f"cluster file {file.path} names no [cluster] remote: restore from where?")
    remote = opener(file.remote, file.remote_storage, clock)
    plan = plan_restore(file, remote, former, clock, key)
    if plan.failures or dry_run:
        return _planned(plan, dry_run)
    ports = heir()

    def take_over_and_bring_back() -> Report:
        with measured(ports.clock, ports.storage.counts) as measure:
            check_target(ports.metadata.image(), plan)
            take_over(ports.metadata, ports.storage, ports.clock, plan, former)
            # The commits of the former cluster until it lost the tables belong to the history, too.
            latest = plan_restore(file, remote, former, clock, key)
            report = (
                _planned(latest, False)
                if latest.failures
                else bring_back(ports.metadata, ports.storage, ports.execution, ports.memory, latest)
            )
        return replace(report, seconds=measure.seconds, counts=measure.counts)

    return around(ports, take_over_and_bring_back)


def restored_description(plan: RestorePlan, cluster_id: str) -> ClusterDescription:
    """The restored cluster: the former one's topics, with greater leader epochs."""
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
    """A cluster may be restored to where nothing is, or what an earlier try has restored.

    Raises: InvalidCallError.
    """
    foreign = sorted(
        topic.name
        for topic in image.topics.values()
        if topic.topic_id not in _ids(plan) and topic.name != OPERATIONS_TOPIC  # which tells of this restore
    )
    if foreign:
        raise InvalidCallError(
            f"cluster {image.cluster_id!r} has topics of its own, {', '.join(foreign[:3])}: restore to brokers "
            "without any"
        )


def take_over(metadata: MetadataClient, storage: Storage, clock: Clock, plan: RestorePlan, former: str) -> None:
    """Steps 3 and 4. Raises: as ``hand_over``."""
    from stratalog.tiering.delta_table import hand_over  # here: it loads delta-rs

    remote = storage.remote_store("a cluster is restored from the remote tier")
    description = restored_description(plan, storage.file.cluster_id)
    write_description(remote, description, 0, storage.key, lambda: metadata.image().next_offset)
    for topic in plan.topics:
        if topic.topic_id in plan.tiered:
            table = storage.remote_table(as_image(topic))
            options = storage.file.remote_storage
            if not hand_over(table, former, storage.file.cluster_id, options, clock):
                # Else the former cluster might still create it.
                table.ensure(schema_of(topic.key_schema, topic.value_schema))
        if topic_config(topic.configs, description.configs).snapshot_table:
            published = storage.snapshot_table(as_image(topic))
            hand_over(published, former, storage.file.cluster_id, storage.file.remote_storage, clock)


def bring_back(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, plan: RestorePlan
) -> Report:
    """Steps 5 and 6, on a cluster that owns the tables.

    Raises: what a command is refused with.
    """
    with execution.run("restore") as run:
        metadata.submit(AlterConfigs(None, dict(plan.description.configs)))
        factors = {topic.name: metadata.submit(RestoreTopic(topic)) for topic in plan.topics}
        if names := list(factors):
            run.failures += elect(metadata, storage, execution, names, unclean=True).failures
            run.failures += replicate(metadata, storage, execution, memory, names).failures
    run.add(msgspec.structs.replace(one.row, replicas=factors[one.topic.name]) for one in plan.partitions)
    run.totals |= plan.totals
    run.notes += [
        *plan.notes,
        *(
            f"{topic.name} has {factors[topic.name]} replicas, not {topic.replication_factor}: there are no more "
            "brokers"
            for topic in plan.topics
            if factors[topic.name] < topic.replication_factor
        ),
    ]
    return run.report()


def _planned(plan: RestorePlan, dry_run: bool) -> Report:
    """The report of a restore that changes nothing: it is a dry run, or cannot be done."""
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


def _ids(plan: RestorePlan) -> set[str]:
    return {topic.topic_id for topic in plan.topics}
