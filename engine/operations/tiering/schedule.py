"""Where the list of due partitions lives (``tiering.schedule``): on the cluster's own storage, never in the
remote tier, for it must tell when to try again while the remote is down.

One list a cluster, in the root of the first broker that answers, in versions: whoever ran last has written the
greatest. A driver that finds its version taken puts what it did on top of what the other one wrote. A list that
is lost, torn or out of date costs only looks at partitions that would not have been due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from engine.context import Context
from engine.metadata.image import ClusterImage
from partitions import paths
from partitions.errors import OutcomeUnknownError, StorageError, StratalogError
from partitions.store import Store
from tiering.schedule import Entry, Key, Schedule, decode, encode

_ATTEMPTS = 5
_KEPT = 2
"""Versions that stay: a reader that has just listed the last but one finds it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The root of one broker."""

    store: Store
    home: str

    def versions(self) -> list[int]:
        """The versions that are there, in order. Raises: StratalogError."""
        folder = paths.schedule_folder(self.home)
        names = (paths.name_in(folder, stored.name) for stored in self.store.list(folder))
        found = (paths.parse_schedule_name(name) for name in names)
        return sorted(version for version in found if version is not None)

    def read(self, version: int) -> Schedule:
        """One version. Raises: FileNotFoundError, StratalogError."""
        return decode(self.store.read(paths.schedule_path(self.home, version)))


@dataclass(frozen=True, slots=True)
class Kept:
    """The list as it was found."""

    schedule: Schedule = Schedule()  # noqa: RUF009 - immutable
    place: _Place | None = None
    versions: tuple[int, ...] = ()
    """Those that were there, in order; the last one is ``schedule``, if it could be read."""


def load_schedule(context: Context, image: ClusterImage) -> Kept:
    """The list as it was written last; an empty one where there is none, or none can be read."""
    for place in _places(context, image):
        with suppress(StratalogError):
            return _newest(place)
    return Kept()


def save_schedule(
    context: Context,
    image: ClusterImage,
    kept: Kept,
    leader_epochs: Mapping[Key, int],
    changes: Mapping[Key, Entry],
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


def _save(place: _Place, kept: Kept, leader_epochs: Mapping[Key, int], changes: Mapping[Key, Entry]) -> None:
    for _ in range(_ATTEMPTS):
        wanted = kept.schedule.assigned(leader_epochs).updated(changes)
        version = kept.versions[-1] + 1 if kept.versions else 1
        with suppress(OutcomeUnknownError):  # whatever became of it: the next attempt finds out
            if place.store.create(paths.schedule_path(place.home, version), encode(wanted)):
                old = [paths.schedule_path(place.home, version) for version in kept.versions[: 1 - _KEPT]]
                if old:
                    place.store.delete(old)
                return
        kept = _newest(place)
    raise StorageError(f"other drivers wrote {_ATTEMPTS} times in between")


def _newest(place: _Place) -> Kept:
    versions = place.versions()
    for version in reversed(versions):
        with suppress(FileNotFoundError):  # somebody has written a newer one since
            return Kept(place.read(version), place, tuple(versions))
    return Kept(Schedule(), place, tuple(versions))


def _places(context: Context, image: ClusterImage) -> Iterator[_Place]:
    for broker_id, broker in sorted(image.brokers.items()):
        if not broker.fenced and broker_id in context.stores:
            yield _Place(context.stores[broker_id], broker.home)
