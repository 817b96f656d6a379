"""Stores the list of partitions that are due for tiering (``stratalog.tiering.schedule``), as a hint
(``stratalog.engine.driver.stored_schedule``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import StoredSchedule, load_stored, save_stored
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import REMOTE_LOG_MANAGER
from stratalog.tiering.schedule import Entry, Schedule, decode, encode


@dataclass(frozen=True, slots=True)
class KeptSchedule:
    """The stored list; empty if none could be read."""

    schedule: Schedule = Schedule()  # noqa: RUF009 - immutable
    stored: StoredSchedule = StoredSchedule()  # noqa: RUF009 - immutable


def load_schedule(storage: Storage, image: ClusterImage) -> KeptSchedule:
    """The latest list; empty if none can be read."""
    stored = load_stored(storage, image, REMOTE_LOG_MANAGER)
    return KeptSchedule(decode(stored.line), stored)


def save_schedule(
    storage: Storage,
    image: ClusterImage,
    kept: KeptSchedule,
    leader_epochs: Mapping[TopicIdPartition, int],
    changes: Mapping[TopicIdPartition, Entry],
) -> str | None:
    """Apply ``changes`` to the current list, and write it with exactly the partitions of ``leader_epochs``. The
    current list is ``kept``, unless another driver has written a newer list. Returns the reason for a failure;
    None on success.
    """

    def changed(line: bytes) -> bytes:
        return encode(decode(line).assigned(leader_epochs).updated(changes))

    return save_stored(storage, image, REMOTE_LOG_MANAGER, kept.stored, changed)
