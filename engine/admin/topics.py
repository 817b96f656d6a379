"""Creates, alters and deletes topics, and adds partitions. A topic is deleted first from the metadata, then from
disks and the remote tier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from stratalog.engine.config.settings import check_long
from stratalog.engine.driver.compared_clocks import compared_clocks
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import PartitionRow, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.protection import PROTECT
from stratalog.engine.metadata.topic_commands import (
    AlterConfigs,
    AlterTopic,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.positions import micros, time_of
from stratalog.engine.replication.replica_selector import KEY
from stratalog.engine.state.internal_topics import METADATA_CONFIGS, check_not_internal
from stratalog.engine.upkeep.retention.sweep import special_files
from stratalog.partitions import paths
from stratalog.partitions.clock import time_text
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidReplicationFactorError,
    RetriableError,
    StorageAuthorizationError,
    StorageError,
    StratalogError,
)
from stratalog.partitions.store import Store, StoredObject

_DAY_MS = 24 * 60 * 60 * 1000
_MOST_DAYS = 36_525
"""A century. Longer protection is probably a mistake, and it could not be undone."""


class CreatedRow(Row, frozen=True, kw_only=True):
    """A topic that was created, or that existed before with the requested shape."""

    topic: str
    created: bool
    partitions: int
    replication_factor: int
    topic_id: str | None
    """None in the dry run of a new topic."""


class AlteredRow(Row, frozen=True, kw_only=True):
    """A new or widened field of a topic's types, such as ``value.gate``."""

    topic: str
    field: str


class AddedRow(PartitionRow, frozen=True, kw_only=True):
    replicas: str


class ConfigRow(Row, frozen=True, kw_only=True):
    config: str
    value: str | None
    """None: it was reset to its default."""
    changed: bool


class ProtectedRow(Row, frozen=True, kw_only=True):
    """A protected topic, and the time (ISO 8601, UTC)."""

    topic: str
    protected_until: str


class DeletedRow(Row, frozen=True, kw_only=True):
    """The files of a deleted topic on a broker, or in the remote tier."""

    place: str
    deleted_files: int
    deleted_bytes: int


def create_topic(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
    configs: Mapping[str, str | float] | None = None,
    if_not_exists: bool = False,
    log_starts: Sequence[int] = (),
    dry_run: bool = False,
) -> Report:
    """Create a topic. A schema is Spark's JSON text of a type; None means binary. ``if_not_exists`` accepts an
    existing topic of this shape (``CreateTopic``). ``log_starts``: the log starts of the first partitions.
    ``dry_run`` only checks the call. The report has one row (``CreatedRow``).

    Raises: TopicAlreadyExistsError, InvalidReplicationFactorError, InvalidConfigError, InvalidCallError.
    """
    with execution.run("topics create", dry_run=dry_run) as run:
        texts = {key: str(value) for key, value in (configs or {}).items()}
        check_long(texts, f"topic {name!r}")
        _check_remote(storage, texts)
        command = CreateTopic(
            name=name,
            topic_id=storage.new_id(),
            partitions=partitions,
            replication_factor=replication_factor,
            key_schema=key_schema,
            value_schema=value_schema,
            configs=texts,
            if_not_exists=if_not_exists,
            log_starts=log_starts,
        )
        try:
            made = metadata.submit(command, dry_run=dry_run)
        except InvalidReplicationFactorError as error:
            never = sorted(storage.stores.keys() - metadata.image().brokers.keys())
            if not never:
                raise
            raise InvalidReplicationFactorError(
                f"{error}; brokers {never} of the cluster file were never registered: run format again, which "
                "completes the first run"
            ) from error
        row = CreatedRow(
            topic=name,
            created=made.created,
            partitions=made.partitions,
            replication_factor=made.replication_factor,
            topic_id=None if dry_run and made.created else made.topic_id,
        )
        run.add([row])
    return run.report()


def alter_topic(
    metadata: MetadataClient,
    execution: Execution,
    name: str,
    *,
    key_schema: str | None = None,
    value_schema: str | None = None,
    dry_run: bool = False,
) -> Report:
    """Extend the declared schemas of a topic by nullable fields and wider types. A schema of None stays unchanged.
    ``dry_run`` only checks the call. The report has a row for each new or widened field.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidConfigError; InvalidCallError, also for any
        other change of a schema.
    """
    if key_schema is None and value_schema is None:
        raise InvalidCallError(f"topic {name!r}: give the type of its keys or values")
    with execution.run("topics alter", dry_run=dry_run) as run:
        fields = metadata.submit(AlterTopic(name, key_schema, value_schema), dry_run=dry_run)
        run.add(AlteredRow(topic=name, field=field) for field in fields)
    return run.report()


def create_partitions(
    metadata: MetadataClient,
    execution: Execution,
    name: str,
    partitions: int,
    *,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> Report:
    """Add partitions to a topic, up to ``partitions``. With ``if_not_exists`` a topic that already has this many
    partitions or more stays unchanged. ``dry_run`` only reports the brokers of the new partitions. The report has
    a row for each new partition.

    Raises: see ``CreatePartitions.decide``.
    """
    with execution.run("topics create_partitions", dry_run=dry_run) as run:
        if not if_not_exists or partitions > len(metadata.image().topic(name).partitions):
            added = metadata.submit(CreatePartitions(name, partitions), dry_run=dry_run)
            run.add(
                AddedRow(topic=name, partition=partition, replicas=",".join(map(str, replicas)))
                for partition, replicas in added.items()
            )
        if not run.rows:
            run.notes.append(f"topic {name!r} already has {partitions} partitions{' or more' * if_not_exists}")
    return run.report()


def alter_configs(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topic: str | None,
    changes: Mapping[str, str | float | None],
    *,
    dry_run: bool = False,
) -> Report:
    """Set configs of a topic (None: of the cluster). A value of None restores the default. ``dry_run`` only checks
    the call. The report has a row for each config that is set afterwards, and for each config that was reset.

    Raises: UnknownTopicOrPartitionError, InvalidConfigError, InvalidCallError.
    """
    with execution.run("topics alter_configs", dry_run=dry_run) as run:
        texts = {key: None if value is None else str(value) for key, value in changes.items()}
        check_long(texts, "cluster" if topic is None else f"topic {topic!r}")
        _check_remote(storage, texts)
        if topic is None and (selector := texts.get(KEY)) is not None:
            memory.selector.offered.check(selector.strip())
        after = (
            metadata.submit(AlterConfigs(topic, texts), dry_run=dry_run)
            if texts
            else _set_configs(metadata.image(), topic)
        )
        run.add(
            ConfigRow(config=key, value=after.get(key), changed=key in texts)
            for key in sorted(after.keys() | texts.keys())
        )
    return run.report()


def protect(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topic: str,
    *,
    until: object = None,
    days: float | None = None,
    dry_run: bool = False,
) -> Report:
    """Protect the records of a topic until a time (a datetime with a zone, or ISO 8601 text), or for a number of
    days from now. ``dry_run`` only checks the call. The report has one row, with the time.

    Raises: PolicyViolationError for a time before the end of the current protection; InvalidCallError, also for a
        past time; UnknownTopicOrPartitionError, InvalidTopicError.
    """
    with execution.run("topics protect", dry_run=dry_run) as run:
        now_ms = compared_clocks(storage, execution.clock, metadata.image()).stamp_ms
        if (until is None) == (days is None):
            raise InvalidCallError(f"topic {topic!r}: give a time until which to protect it, or a number of days")
        if days is None:
            at_ms = micros(time_of(until, f"topic {topic!r}: until")) // 1000
        elif isinstance(days, int | float) and 0 < days <= _MOST_DAYS:
            at_ms = now_ms + int(days * _DAY_MS)
        else:
            raise InvalidCallError(f"topic {topic!r}: days {days!r}: give more than 0, and at most {_MOST_DAYS}")
        if at_ms <= now_ms:
            raise InvalidCallError(
                f"topic {topic!r}: {time_text(at_ms)} is in the past: nothing would be protected"
            )
        metadata.submit(AlterConfigs(topic, {PROTECT: str(at_ms)}), dry_run=dry_run)
        time = datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
        run.add([ProtectedRow(topic=topic, protected_until=time)])
    return run.report()


def _set_configs(image: ClusterImage, topic: str | None) -> Mapping[str, str]:
    """The configs that are set on a topic, or on the cluster if ``topic`` is None."""
    if topic == paths.METADATA_TOPIC:
        return METADATA_CONFIGS
    return image.configs if topic is None else image.topic(topic).configs


def _check_remote(storage: Storage, texts: Mapping[str, str | None]) -> None:
    """Refuse configs that need a remote tier if the cluster has none. Raises: InvalidCallError."""
    for name in ("remote.storage.enable", "remote.snapshot.table.enable"):
        if (texts.get(name) or "false").lower() == "true":
            storage.remote_store(f"{name} is to be set")


def delete_topic(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    name: str,
    *,
    keep_remote: bool = False,
    if_exists: bool = False,
    dry_run: bool = False,
) -> Report:
    """Delete a topic: from the metadata, then its folders on every broker, then (unless ``keep_remote``) its
    remote tables. First of all, ``keep_remote`` is recorded in the tables, so that ``vacuum`` can finish the
    deletion after a crash. With ``if_exists`` a missing topic is only a note.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidCallError for the metadata's own log;
        StorageError if the remote tables cannot be marked. If it raises any of these, nothing was changed.
    """
    if name == paths.METADATA_TOPIC:
        raise InvalidCallError(f"{name} is the metadata log; it cannot be deleted")
    check_not_internal(name, "delete")
    with execution.run("topics delete", dry_run=dry_run) as run:
        image = metadata.image()
        if if_exists and name not in image.topic_ids:
            run.notes.append(f"there is no topic {name!r}")
            return run.report()
        topic = image.topic(name)
        metadata.submit(DeleteTopic(name), dry_run=True)  # before any table is marked
        if not dry_run:
            if storage.remote is not None:  # even if the topic is no longer tiered
                _mark_remote(storage, topic, not keep_remote)
            metadata.submit(DeleteTopic(name))
        for broker_id, broker in sorted(image.brokers.items()):
            store = storage.stores.get(broker_id)
            if store is None or not any(broker_id in partition.replicas for partition in topic.partitions):
                continue
            folder = paths.topic_path(broker.incarnation_folder, topic.name, topic.topic_id)
            try:
                found = store.list(folder)
                run.failures += special_files(f"{name} on broker {broker_id}", store, found)
                files, size = _delete(store, found, dry_run)
                run.add([DeletedRow(place=f"broker {broker_id}", deleted_files=files, deleted_bytes=size)])
            except StratalogError as error:
                run.fail(f"{name} on broker {broker_id}", error)
        if storage.remote is not None and not keep_remote:
            try:
                if (listed_as := topic_config_of(image, topic).remote_iceberg_table) and not dry_run:
                    storage.iceberg_table(topic, listed_as).drop()
                tables = (storage.remote_table(topic), storage.snapshot_table(topic))
                walked = [(table, storage.remote.walk(table.folder)) for table in tables]
                found = [stored for _, objects in walked for stored in objects]
                run.failures += special_files(f"{name} in the remote tier", storage.remote, found)
                files, size = len(found), sum(stored.size_bytes for stored in found)
                for table, objects in walked:
                    if objects and not dry_run:
                        table.delete()
                if files:
                    run.add([DeletedRow(place="remote", deleted_files=files, deleted_bytes=size)])
            except StratalogError as error:
                run.fail(f"{name} in the remote tier", error)
    run.totals["topic"] = name
    return run.report()


def _mark_remote(storage: Storage, topic: TopicImage, deleted: bool) -> None:
    """Mark the remote tables for deletion. Raises: StorageError kinds."""
    try:
        storage.remote_table(topic).mark_deleted(deleted)
        storage.snapshot_table(topic).mark_deleted(deleted)
    except StorageAuthorizationError as error:
        what = f"topic {topic.name!r} was not deleted: {error}"
        raise StorageAuthorizationError(what, error.right, error.path) from error
    except RetriableError as error:
        raise StorageError(
            f"topic {topic.name!r} was not deleted: {error}. Its remote table must be marked as deleted first; "
            "otherwise it would never be deleted. Try again when the remote tier is back"
        ) from error


def _delete(store: Store, found: Sequence[StoredObject], dry_run: bool) -> tuple[int, int]:
    """Delete the regular files of a folder. Returns their number and bytes."""
    objects = [stored for stored in found if not stored.special]
    if objects and not dry_run:
        store.delete([stored.name for stored in objects])
    return len(objects), sum(stored.size_bytes for stored in objects)
