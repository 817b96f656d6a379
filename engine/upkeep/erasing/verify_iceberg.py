"""Verify an erasure in the metadata of Iceberg tables: each snapshot, list and manifest that a table has.

An entry of a manifest has the bounds of its data file. An entry of a segment that holds offsets of the
certificate, and does not follow its erasure, is not erased. A list or manifest that no snapshot names, and a
snapshot from before the erasure, are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.upkeep.erasing.certificate import ErasedPartition, ErasedTopic
from stratalog.partitions import paths
from stratalog.partitions.erasure import within
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition

if TYPE_CHECKING:
    from stratalog.tiering.iceberg_history import IcebergContents  # it needs pyiceberg

ERASED, NOT_ERASED, UNKNOWN = "erased", "not erased", "unknown"


@dataclass(frozen=True, slots=True)
class TwinState:
    """The state of the Iceberg table of a partition."""

    state: str
    files: int
    why: str | None


def iceberg_states(
    storage: Storage, image: ClusterImage, topics: Sequence[ErasedTopic]
) -> dict[TopicIdPartition, TwinState]:
    """The state of each partition of a topic that has an Iceberg table, or had one when it was erased."""
    found: dict[TopicIdPartition, TwinState] = {}
    for topic in topics if storage.remote is not None else ():  # without it, the remote copy is unknown anyway
        for name in sorted(_tables_of(image, topic)):
            for partition, state in _states(storage, topic, name):
                key = TopicIdPartition(topic.topic_id, partition)
                if key not in found or found[key].state == ERASED:
                    found[key] = state
    return found


def _tables_of(image: ClusterImage, topic: ErasedTopic) -> set[str]:
    names = {one.remote.iceberg.table for one in topic.partitions if one.remote and one.remote.iceberg}
    if topic.topic_id in image.topics:
        config = topic_config_of(image, image.topics[topic.topic_id])
        names |= {config.remote_iceberg_table} if config.remote_storage_enable else set()
    return names - {""}


def _states(storage: Storage, topic: ErasedTopic, name: str) -> Iterator[tuple[int, TwinState]]:
    named = TopicImage(name=topic.topic, topic_id=topic.topic_id, key_schema=None, value_schema=None)
    assert storage.remote is not None
    folder = storage.remote.uri_of(paths.topic_folder(topic.topic, topic.topic_id))
    contents: IcebergContents | None = None
    why = f"the catalog has no Iceberg table {name} any more, and may have left its files: remove these by hand"
    try:
        contents = storage.iceberg_table(named, name).contents()
    except StratalogError as error:
        why = f"the Iceberg table {name} cannot be read: {error}"
    for one in topic.partitions:
        erased = None if one.remote is None else one.remote.iceberg
        if contents is not None:
            least = 0 if erased is None or erased.table != name else erased.sequence_number
            state, text = _state_of(one, contents, folder, least)
            shown = None if text is None else f"Iceberg table {name}: {text}"
            yield one.partition, TwinState(state, contents.files, shown)
        elif erased is not None and erased.table == name:
            yield one.partition, TwinState(UNKNOWN, 0, why)


_BEFORE = "a snapshot from before the erasure may have statistics of erased records: erase again"


def _state_of(
    expected: ErasedPartition, contents: IcebergContents, folder: str, least: int | None
) -> tuple[str, str | None]:
    """The state and its reason. ``least``: see ``ErasedIceberg.sequence_number``."""
    unknown = contents.unknown[0] if contents.unknown else None
    for address, rows in sorted(contents.segments):
        parsed = paths.parse_remote_segment_path(address.removeprefix(folder + "/"))
        if parsed is None:
            unknown = unknown or (
                address,
                "it is not a segment, so the content of its statistics is unknown: erase again",
            )
            continue
        partition, name, _ = parsed
        if partition != expected.partition or name.generation >= expected.generation:
            continue
        if within(expected.offsets, name.base_offset, name.base_offset + rows):
            return NOT_ERASED, f"a manifest has statistics of {address}, which has erased records"
    if unknown is not None:
        return UNKNOWN, f"{unknown[0]}: {unknown[1]}"
    if least is None or contents.sequence_number < least:
        return UNKNOWN, _BEFORE
    return ERASED, None
