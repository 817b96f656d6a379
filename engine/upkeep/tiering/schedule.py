"""Where the list of due partitions lives (``stratalog.tiering.schedule``): on the cluster's own storage, never in
the remote tier, for it must tell when to try again while the remote is down.

One list a cluster, in the root of the first broker that answers, in versions: the latest run has written the
greatest. A driver that finds its version taken puts its changes on top of the other driver's. A list that is lost,
torn or out of date costs only looks at partitions that would not have been due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import OutcomeUnknownError, StorageError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.store import Store
from stratalog.tiering.schedule import MOST_BYTES, Entry, Schedule, decode, encode

_ATTEMPTS = 5
_KIND = "schedule"
_BEFORE_TAG = b"\n\n"
_KEPT = 2
"""Versions that stay: a reader that has just listed the last but one finds it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The root of one broker."""

    store: Store
    incarnation_folder: str
    key: ClusterKey | None

    def versions(self) -> list[int]:
        """The versions that are there, in order. Raises: StratalogError."""
        folder = paths.schedule_folder(self.incarnation_folder)
        names = (paths.name_in(folder, stored.name) for stored in self.store.list(folder))
        found = (paths.parse_schedule_name(name) for name in names)
        return sorted(version for version in found if version is not None)

    def read(self, version: int) -> Schedule:
        """One version; an empty list where it is a stranger's. Raises: FileNotFoundError, StratalogError."""
        path = paths.schedule_path(self.incarnation_folder, version)
        body, _, tag = read_bounded(self.store, path, MOST_BYTES).partition(_BEFORE_TAG)
        digest = hashlib.sha256(body).digest()
        if self.key is not None and not self.key.knows(_KIND, path, digest, tag.decode("latin-1")):
            return Schedule()
        return decode(body)

    def create(self, version: int, schedule: Schedule) -> bool:
        """Whether this call has written that version. Raises: StratalogError."""
        path, body = paths.schedule_path(self.incarnation_folder, version), encode(schedule)
        tag = b""
        if self.key is not None:
            tag = _BEFORE_TAG + self.key.tag(_KIND, path, hashlib.sha256(body).digest()).encode()
        return self.store.create(path, body + tag)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """The list as it was found."""

    schedule: Schedule = Schedule()  # noqa: RUF009 - immutable
    place: _Place | None = None
    versions: tuple[int, ...] = ()
    """Those that were there, in order; the last one is ``schedule``, if it could be read."""


def load_schedule(context: Context, image: ClusterImage) -> StoredSchedule:
    """The latest list; an empty one where no list can be read."""
    for place in _places(context, image):
        with suppress(StratalogError):
            return _newest(place)
    return StoredSchedule()


def save_schedule(
    context: Context,
    image: ClusterImage,
    kept: StoredSchedule,
    leader_epochs: Mapping[TopicIdPartition, int],
    changes: Mapping[TopicIdPartition, Entry],
) -> str | None:
    """Write the list of exactly these partitions, with ``changes`` made to what is there now, which is ``kept``
    where nobody else has written since. Returns why it could not be written, None when it was.
    """
    why = "no broker has a root that can be written"
    for place in _places(context, image):
        try:
            _save(place, kept if kept.place == place else _newest(place), leader_epochs, changes)
        except StratalogError as error:
            why = str(error)
        else:
            return None
    return why


def _save(
    place: _Place,
    kept: StoredSchedule,
    leader_epochs: Mapping[TopicIdPartition, int],
    changes: Mapping[TopicIdPartition, Entry],
) -> None:
    for _ in range(_ATTEMPTS):
        wanted = kept.schedule.assigned(leader_epochs).updated(changes)
        version = kept.versions[-1] + 1 if kept.versions else 1
        with suppress(OutcomeUnknownError):  # whatever became of it: the next attempt finds out
            if place.create(version, wanted):
                old = [
                    paths.schedule_path(place.incarnation_folder, version)
                    for version in kept.versions[: 1 - _KEPT]
                ]
                if old:
                    place.store.delete(old)
                return
        kept = _newest(place)
    raise StorageError(f"other drivers wrote {_ATTEMPTS} times in between")


def _newest(place: _Place) -> StoredSchedule:
    versions = place.versions()
    for version in reversed(versions):
        with suppress(FileNotFoundError):  # somebody has written a newer one since
            return StoredSchedule(place.read(version), place, tuple(versions))
    return StoredSchedule(Schedule(), place, tuple(versions))


def _places(context: Context, image: ClusterImage) -> Iterator[_Place]:
    for broker_id, broker in sorted(image.brokers.items()):
        if not broker.fenced and broker_id in context.stores:
            yield _Place(context.stores[broker_id], broker.incarnation_folder, context.key)
