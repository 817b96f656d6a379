"""Stores schedules on the brokers' roots. Schedules are not in the remote tier, because they say when to retry
while the remote tier is unreachable.

A cluster has one schedule per kind, in numbered versions; the newest version is valid. The first
``offsets.topic.replication.factor`` brokers that answer hold a copy each. So no schedule is lost with a broker,
and an old copy on a returning broker has no effect. A driver that finds its version taken on the first broker
applies its changes to the other driver's version. A schedule is a hint: if it is missing, torn or outdated, the
only effect is that jobs do work that was not due.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import OutcomeUnknownError, StratalogError
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.runner import Done
from stratalog.partitions.store import Store

MOST_BYTES = 128 * 1024 * 1024
"""The maximum size of a schedule, in bytes; a million partitions take about 100 MB. A longer one is ignored, and
everything is due.
"""

_ATTEMPTS = 5
_KIND = "schedule"
_BEFORE_TAG = b"\n\n"
_SEAL_BYTES = 16
_KEPT = 2
"""Versions to keep, so that a reader with a recent listing finds the previous one."""


@dataclass(frozen=True, slots=True)
class SchedulePlace:
    """The schedule ``of`` a kind (``paths.SCHEDULES``) on the root of one broker."""

    store: Store
    directory_id: str
    """The registered directory id of the root."""
    incarnation_folder: str
    of: str
    key: ClusterKey | None

    def is_mounted(self) -> bool:
        """Whether the root is the registered one, and not an empty mount point. Raises: StratalogError."""
        found = read_broker_file(self.store)
        return found is not None and found.directory_id == self.directory_id

    def versions(self) -> list[int]:
        """The existing versions, in order. Raises: StratalogError."""
        folder = paths.schedule_folder(self.incarnation_folder, self.of)
        names = (paths.name_in(folder, stored.name) for stored in self.store.list(folder))
        found = (paths.parse_schedule_name(name) for name in names)
        return sorted(version for version in found if version is not None)

    def path(self, version: int) -> str:
        """The name of one version."""
        return paths.schedule_path(self.incarnation_folder, self.of, version)

    def read(self, version: int) -> bytes:
        """One version; empty if it is torn or foreign. Raises: FileNotFoundError, StratalogError."""
        path = self.path(version)
        body, _, tag = read_bounded(self.store, path, MOST_BYTES).partition(_BEFORE_TAG)
        digest = hashlib.sha256(body).digest()
        if self.key is not None and not self.key.knows(_KIND, path, digest, tag.decode("latin-1")):
            return b""
        line, _, seal = body.partition(b"\n")
        return line if seal == _seal(line) else b""

    def create(self, version: int, line: bytes) -> bool:
        """Create a version; returns whether this call did. Raises: StratalogError."""
        path, body, tag = self.path(version), line + b"\n" + _seal(line), b""
        if self.key is not None:
            tag = _BEFORE_TAG + self.key.tag(_KIND, path, hashlib.sha256(body).digest()).encode()
        return self.store.create(path, body + tag)


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """The versions on one broker."""

    place: SchedulePlace
    versions: tuple[int, ...]
    """The versions, in ascending order."""

    @property
    def newest(self) -> int:
        """The greatest version; 0 if the broker has none."""
        return self.versions[-1] if self.versions else 0


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it was read."""

    line: bytes = b""
    """The newest readable version; empty if no version was readable."""
    copies: tuple[StoredCopy, ...] = ()
    """The copies of the brokers that were read, newest first."""

    @property
    def version(self) -> int:
        """The greatest version; 0 if no broker has one."""
        return max(map(attrgetter("newest"), self.copies), default=0)

    def versions(self, place: SchedulePlace) -> tuple[int, ...]:
        """The versions on a broker, in order; empty for a broker that was not read."""
        return next((copy.versions for copy in self.copies if copy.place == place), ())


def load_stored(storage: Storage, image: ClusterImage, of: str) -> StoredSchedule:
    """Load the newest copy; empty if no copy is readable. If the first brokers have no copy, all brokers are
    read.
    """
    waiting, found = list(_places(storage, image, of)), list[StoredCopy]()
    most = _copies(image)
    while waiting and (len(found) < most or not any(copy.versions for copy in found)):
        wave, waiting = waiting[:most], waiting[most:]
        outcomes = storage.threads.run(lambda place: tuple(place.versions()), wave)
        held = {one.item.directory_id: one.value for one in outcomes if isinstance(one, Done)}
        found += [StoredCopy(one, held[one.directory_id]) for one in wave if one.directory_id in held]
    copies = tuple(sorted(found, key=attrgetter("newest"), reverse=True))
    return StoredSchedule(_newest_line(copies), copies)


def save_stored(
    storage: Storage,
    image: ClusterImage,
    of: str,
    kept: StoredSchedule,
    change: Callable[[bytes], bytes],
    *,
    once: bool = False,
) -> str | None:
    """Write the next version: the result of ``change`` on the current line, which is the line in ``kept`` unless
    another driver has written a version since. ``once``: one copy is enough. Returns the reason for a failure,
    None on success.
    """
    most = 1 if once else _copies(image)
    for _ in range(_ATTEMPTS):
        write = _Write(kept.version + 1, change(kept.line))
        for place in _places(storage, image, of):
            if write.copies < most and not write.is_beaten:
                write.to(place, kept.versions(place))
        if write.copies:
            return None
        if not (write.is_beaten or write.is_unknown):
            return write.why
        kept = load_stored(storage, image, of)
    return f"other drivers wrote the list {_ATTEMPTS} times in the meantime"


@dataclass(slots=True)
class _Write:
    """One version being written to the brokers."""

    version: int
    line: bytes
    copies: int = 0
    is_beaten: bool = False
    """Whether another driver has written this version to the first broker."""
    is_unknown: bool = False
    why: str = "no broker has a root that can be written"

    def to(self, place: SchedulePlace, older: Sequence[int]) -> None:
        """Write a copy, and delete the ``older`` versions except the last. On failure ``why`` has the reason."""
        try:
            if not place.is_mounted():
                return
            if not place.create(self.version, self.line):
                self.is_beaten = not self.copies
                return
            self.copies += 1
            old = [place.path(version) for version in older[: 1 - _KEPT]]
            if old:
                place.store.delete(old)
        except OutcomeUnknownError as error:
            self.is_unknown, self.why = True, str(error)
        except StratalogError as error:
            self.why = str(error)


def places_of_copies(storage: Storage, image: ClusterImage) -> list[Store]:
    """The roots that keep the copies of a schedule, if all brokers answer."""
    return [place.store for place in itertools.islice(_places(storage, image, ""), _copies(image))]


def _newest_line(copies: Sequence[StoredCopy]) -> bytes:
    """The first readable version, from the newest down."""
    every = sorted(((v, -n) for n, copy in enumerate(copies) for v in copy.versions[-_KEPT:]), reverse=True)
    for version, number in every:
        with suppress(FileNotFoundError, StratalogError):  # another driver has since written a newer version
            line = copies[-number].place.read(version)
            if line:
                return line
    return b""


def _copies(image: ClusterImage) -> int:
    return cluster_config_of(image).offsets_topic_replication_factor


def _seal(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_SEAL_BYTES).hexdigest().encode()


def _places(storage: Storage, image: ClusterImage, of: str) -> Iterator[SchedulePlace]:
    for broker_id, broker in sorted(image.brokers.items()):
        if not broker.fenced and broker_id in storage.stores:
            store, root = storage.stores[broker_id], broker.directory_id
            yield SchedulePlace(store, root, broker.incarnation_folder, of, storage.key)
