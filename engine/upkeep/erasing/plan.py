"""The partitions of an erasure, and the reasons to refuse one. Everything is refused before anything changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.metadata.protection import Now, is_protected
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.engine.upkeep.erasing.tasks import EraseWork
from stratalog.engine.upkeep.snapshots.partition import SnapshotWork
from stratalog.engine.upkeep.snapshots.snapshot import MEMORY_BYTES
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import PolicyViolationError
from stratalog.partitions.records import schema_of
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.erasing import ErasingOptions
from stratalog.partitions.rewrites.wanted_keys import wanted_keys
from stratalog.partitions.rewrites.wanted_where import RecordFinder, WantedWhere, wanted_where
from stratalog.partitions.store import Store


@dataclass(frozen=True, slots=True)
class WantedRecords:
    """The records to erase."""

    keys: Sequence[object] | None
    where: str | None = None
    """A condition (``stratalog.partitions.rewrites.where``); with keys, both must hold."""
    before_us: int | None = None

    @property
    def any(self) -> bool:
        """Whether records are named. If not, a run only continues the erasures that an earlier run has begun."""
        return self.keys is not None or self.where is not None

    def of_topic(self, schema: pa.Schema, what: str) -> RecordFinder | None:
        """The records of a topic with this schema. Raises: InvalidCallError, which begins with ``what``."""
        keys = None
        if self.keys is not None:
            keys = wanted_keys(self.keys, schema.field("key").type, what, self.before_us)
        return keys if self.where is None else wanted_where(self.where, schema, what, keys, self.before_us)


def check_topics(
    storage: Storage, image: ClusterImage, names: Sequence[str], wanted: WantedRecords, now_ms: Now
) -> dict[str, RecordFinder | None]:
    """The records of each topic, by its id.

    Raises: PolicyViolationError for a topic that no record can be erased from, by name; InvalidTopicError for an
        internal one; UnknownTopicOrPartitionError; InvalidCallError for keys that are none of a topic's,
        and for a condition that does not fit its schema.
    """
    found = {}
    for topic in chosen_topics(image, names):
        check_not_internal(topic.name, "erase records of")
        for why in _refusals(storage, image, topic, wanted, now_ms):
            raise PolicyViolationError(f"topic {topic.name!r}: {why}; nothing was changed")
        schema = schema_of(topic.key_schema, topic.value_schema)
        found[topic.topic_id] = of_topic = wanted.of_topic(schema, f"topic {topic.name!r}")
        whole_keys = _why_whole_keys(topic_config_of(image, topic))
        if whole_keys is not None and isinstance(of_topic, WantedWhere):
            _check_whole_keys(topic.name, whole_keys, of_topic)
    return found


def _why_whole_keys(config: TopicConfig) -> str | None:
    """The reason why the records of a key in this topic must be erased together; None if there is none."""
    if config.snapshots:
        return "it has cleanup.policy=snapshot, and its snapshots have one record of each key"
    return "it is compacted, and an earlier record of a key would become its last" if config.compacts else None


def _check_whole_keys(topic: str, why: str, wanted: WantedWhere) -> None:
    """Raises: PolicyViolationError for a condition that may select only some of the records of a key."""
    if others := [name for name in wanted.columns if name.split(".")[0] != "key"]:
        raise PolicyViolationError(
            f"topic {topic!r}: {why}: erase whole keys, by a condition without {', '.join(others)}; nothing was "
            "changed"
        )


def _refusals(
    storage: Storage, image: ClusterImage, topic: TopicImage, wanted: WantedRecords, now_ms: Now
) -> Iterator[str]:
    config = topic_config_of(image, topic)
    if is_protected(image, topic.topic_id, now_ms):
        yield "it is protected (protect.until.ms), so no record can be erased from it"
    if config.remote_iceberg_table and not config.remote_storage_enable:
        yield (
            f"it is not tiered, but the Iceberg table {config.remote_iceberg_table} may still contain its "
            "records: first drop that table and its files, and set remote.iceberg.table to an empty string"
        )
    if wanted.before_us is not None and (whole_keys := _why_whole_keys(config)):
        yield f"{whole_keys}: erase whole keys, without a time"
    if storage.remote is None and config.remote_log_delete_on_disable:
        yield (
            "it may have been tiered (remote.log.delete.on.disable), but the cluster file does not name the "
            "remote tier ([cluster] remote) where its objects may be: add it there, or, if the topic was "
            "never tiered, delete that config"
        )
    if storage.remote is not None:
        if not config.remote_storage_enable and (why := _left_of_tiering(storage, storage.remote, topic)):
            yield why
        folder = paths.join(paths.SNAPSHOT_TABLES, topic.folder)
        if not config.snapshot_table and storage.remote.walk(folder):
            yield (
                f"it no longer publishes its snapshots (remote.snapshot.table.enable), but the remote tier has "
                f"objects of it in {folder}, which would keep the records: run `stratalog vacuum`, which deletes "
                "them, then erase again"
            )


def work_of(
    storage: Storage, clock: Clock, image: ClusterImage, view: PartitionView, keys: RecordFinder | None
) -> EraseWork:
    """The work on a partition."""
    config = topic_config_of(image, image.topics[view.topic_id])
    return EraseWork(
        replicas=storage.replicas(view),
        keys=keys,
        options=ErasingOptions(
            segment_bytes=config.merging.segment_bytes,
            compression=config.compression_type,
            compacted=view.compaction or Rule(0, 0),
        ),
        delay_ms=config.file_delete_delay_ms,
        clock=clock,
        copies=storage.copies,
        snapshots=_snapshot_work(storage, clock, image, view, config) if config.snapshots else None,
    )


def _snapshot_work(
    storage: Storage, clock: Clock, image: ClusterImage, view: PartitionView, config: TopicConfig
) -> SnapshotWork:
    """The work on the snapshot that an erasure needs, with all stable records. It is never a first one that lacks
    records: the erasure would replace the snapshot that has them."""
    topic = image.topics[view.topic_id]
    return SnapshotWork(
        replicas=storage.replicas(view),
        schema=schema_of(topic.key_schema, topic.value_schema),
        policy=config.snapshotting,
        by_hand=True,
        complete=True,
        delete_retention_ms=config.delete_retention_ms,
        lag_time_max_ms=config.metadata_start_offset_lag_time_max_ms,
        delete_delay_ms=config.file_delete_delay_ms,
        compression=config.compression_type,
        memory_bytes=MEMORY_BYTES,
        published=config.snapshot_table,
        clock=clock,
    )


def _left_of_tiering(storage: Storage, remote: Store, topic: TopicImage) -> str | None:
    """The reason why no record can be erased from a topic that is not tiered. None if the remote tier has no
    object of the topic, or if the topic's table has no segments but identifies the objects; these are then cleaned
    like those of a tiered topic.

    Raises: errors of the store and of the table.
    """
    if not remote.walk(topic.folder):
        return None
    log = storage.remote_table(topic).load()
    if log.version < 0:
        return (
            f"the remote tier has objects of it in {topic.folder}, but no table that lists them: delete them first"
        )
    if log.all_segments():
        return (
            "it is no longer tiered (remote.log.delete.on.disable), and its remote table still lists segments: "
            "run `stratalog retain`, which removes them, then erase again"
        )
    return None
