"""Where schedules live: on the cluster's own storage, never in the remote tier, for they must tell when to try
again while the remote is down.

One schedule of a kind a cluster, in the root of the first broker that answers, in versions: the latest run has
written the greatest. A driver that finds its version taken puts its changes on top of the other driver's. A
schedule is a hint: one that is lost, torn or out of date costs only work that would not have been due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import OutcomeUnknownError, StorageError, StratalogError
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.store import Store

MOST_BYTES = 128 * 1024 * 1024
"""Of a schedule; a million partitions have some 100 MB. A longer one is not read: everything is due then."""

_ATTEMPTS = 5
_KIND = "schedule"
_BEFORE_TAG = b"\n\n"
_SEAL_BYTES = 16
_KEPT = 2
"""Versions that stay: a reader that has just listed the last but one finds it."""


@dataclass(frozen=True, slots=True)
class SchedulePlace:
    """The schedule ``of`` a kind (``paths.SCHEDULES``) in the root of one broker."""

    store: Store
    directory_id: str
    """Of the root, as it is registered."""
    incarnation_folder: str
    of: str
    key: ClusterKey | None

    def is_mounted(self) -> bool:
        """Whether the root is the one that was registered, and no empty mount point. Raises: StratalogError."""
        found = read_broker_file(self.store)
        return found is not None and found.directory_id == self.directory_id

    def versions(self) -> list[int]:
        """The versions that are there, in order. Raises: StratalogError."""
        folder = paths.schedule_folder(self.incarnation_folder, self.of)
        names = (paths.name_in(folder, stored.name) for stored in self.store.list(folder))
        found = (paths.parse_schedule_name(name) for name in names)
        return sorted(version for version in found if version is not None)

    def path(self, version: int) -> str:
        """The name of one version."""
        return paths.schedule_path(self.incarnation_folder, self.of, version)

    def read(self, version: int) -> bytes:
        """One version; nothing where it is torn, or a stranger's. Raises: FileNotFoundError, StratalogError."""
        path = self.path(version)
        body, _, tag = read_bounded(self.store, path, MOST_BYTES).partition(_BEFORE_TAG)
        digest = hashlib.sha256(body).digest()
        if self.key is not None and not self.key.knows(_KIND, path, digest, tag.decode("latin-1")):
            return b""
        line, _, seal = body.partition(b"\n")
        return line if seal == _seal(line) else b""

    def create(self, version: int, line: bytes) -> bool:
        """Whether this call has written that version. Raises: StratalogError."""
        path, body, tag = self.path(version), line + b"\n" + _seal(line), b""
        if self.key is not None:
            tag = _BEFORE_TAG + self.key.tag(_KIND, path, hashlib.sha256(body).digest()).encode()
        return self.store.create(path, body + tag)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it was found."""

    line: bytes = b""
    """Nothing: none could be read."""
    place: SchedulePlace | None = None
    versions: tuple[int, ...] = ()
    """Those that were there, in order; the last one is ``line``, if it could be read."""


def load_stored(context: Context, image: ClusterImage, of: str) -> StoredSchedule:
    """The latest version; nothing where none can be read."""
    for place in _places(context, image, of):
        with suppress(StratalogError):
            return _newest(place)
    return StoredSchedule()


def save_stored(
    context: Context, image: ClusterImage, of: str, kept: StoredSchedule, change: Callable[[bytes], bytes]
) -> str | None:
    """Write the next version: what ``change`` makes of the line that is there now, which is that of ``kept`` where
    nobody else has written since. Returns why it could not be written, None when it was.
    """
    why = "no broker has a root that can be written"
    for place in _places(context, image, of):
        try:
            if not place.is_mounted():
                continue
            _save(place, kept if kept.place == place else _newest(place), change)
        except StratalogError as error:
            why = str(error)
        else:
            return None
    return why


def _save(place: SchedulePlace, kept: StoredSchedule, change: Callable[[bytes], bytes]) -> None:
    for _ in range(_ATTEMPTS):
        version = kept.versions[-1] + 1 if kept.versions else 1
        with suppress(OutcomeUnknownError):  # whatever became of it: the next attempt finds out
            if place.create(version, change(kept.line)):
                old = [place.path(version) for version in kept.versions[: 1 - _KEPT]]
                if old:
                    place.store.delete(old)
                return
        kept = _newest(place)
    raise StorageError(f"other drivers wrote {_ATTEMPTS} times in between")


def _newest(place: SchedulePlace) -> StoredSchedule:
    versions = place.versions()
    for version in reversed(versions):
        with suppress(FileNotFoundError):  # somebody has written a newer one since
            return StoredSchedule(place.read(version), place, tuple(versions))
    return StoredSchedule(b"", place, tuple(versions))


def _seal(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_SEAL_BYTES).hexdigest().encode()


def _places(context: Context, image: ClusterImage, of: str) -> Iterator[SchedulePlace]:
    for broker_id, broker in sorted(image.brokers.items()):
        if not broker.fenced and broker_id in context.stores:
            store, root = context.stores[broker_id], broker.directory_id
            yield SchedulePlace(store, root, broker.incarnation_folder, of, context.key)
