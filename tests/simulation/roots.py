"""The truth: the content of one root of a broker (or of the remote tier)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter

from stratalog.partitions.paths import folder_of
from stratalog.partitions.store.protocol import StoredObject

Entry = tuple[StoredObject, bytes]


class Root:
    """The objects of one root. Every method is one atomic step of storage."""

    def __init__(self, place: str, *, shows_staged: bool = True) -> None:
        """``shows_staged``: whether ``staged`` shows unnamed bytes. If not, a file is one PUT."""
        self.place = place
        self.shows_staged = shows_staged
        self.folders: dict[str, dict[str, Entry]] = {}
        self.made: dict[str, int] = {}
        """The number of creations of each name: an object's version distinguishes it from earlier ones of its
        name."""
        self.reachable = True
        self.full = False
        self.changed: dict[str, None] = {}
        """Folders that changed since the last look."""
        self.staged: dict[str, str] = {}
        """Unnamed bytes of live writers; with the future name if the naming is in flight."""
        self._stagings = 0
        self._sorted: dict[str, tuple[StoredObject, ...]] = {}
        self._by_rank: dict[str, tuple[tuple[int, StoredObject], ...]] = {}

    def copy(self) -> Root:
        """The same objects on a separate root."""
        twin = Root(self.place)
        twin.folders = {folder: dict(entries) for folder, entries in self.folders.items()}
        twin.made = dict(self.made)
        return twin

    def create(self, name: str, data: bytes, now_ms: int) -> bool:
        """Exclusive create."""
        folder = folder_of(name)
        entries = self.folders.setdefault(folder, {})
        if name in entries:
            return False
        made = self.made[name] = self.made.get(name, 0) + 1
        entries[name] = (StoredObject(name, len(data), now_ms, str(made)), data)
        self._touch(folder)
        return True

    def put(self, name: str, data: bytes, now_ms: int) -> None:
        """Create an object, or replace the existing one."""
        self.folders.get(folder_of(name), {}).pop(name, None)
        self.create(name, data, now_ms)

    def stage(self) -> str:
        """A place for unnamed bytes in ``staged``."""
        self._stagings += 1
        place = f"staged-{self._stagings}"
        if self.shows_staged:
            self.staged[place] = ""
        return place

    def lose(self, name: str) -> None:
        """Bytes in flight to this name do not arrive."""
        self.staged = {place: to for place, to in self.staged.items() if to != name}

    def delete(self, name: str) -> None:
        """Delete one name; a missing one is no error."""
        folder = folder_of(name)
        if self.folders.get(folder, {}).pop(name, None) is not None:
            self._touch(folder)

    def replace(self, name: str, data: bytes) -> None:
        """Replace the bytes of an object without a write: listings show the same object."""
        entries = self.folders[folder_of(name)]
        entries[name] = (entries[name][0], data)
        self._touch(folder_of(name))

    def get(self, name: str) -> Entry | None:
        entries = self.folders.get(folder_of(name))
        return None if entries is None else entries.get(name)

    def listing(self, prefix: str) -> Sequence[StoredObject]:
        """All objects below a folder, by name."""
        start = prefix + "/" if prefix else ""
        if self._is_one_folder(prefix):
            return self.of_folder(prefix)
        found = [
            stored
            for folder in self.folders
            if folder == prefix or folder.startswith(start)
            for stored in self.of_folder(folder)
        ]
        return sorted(found, key=lambda stored: stored.name)

    def by_rank(self, prefix: str) -> tuple[tuple[int, StoredObject], ...]:
        """All objects below a folder in a fixed, meaningless order, like ``readdir`` of a hashed folder."""
        if not self._is_one_folder(prefix):
            return _ranked(self.listing(prefix))
        if prefix not in self._by_rank:
            self._by_rank[prefix] = _ranked(self.of_folder(prefix))
        return self._by_rank[prefix]

    def _is_one_folder(self, prefix: str) -> bool:
        """Whether all objects below a folder are directly in it."""
        below = f"{prefix}/"
        return bool(prefix) and prefix in self.folders and not any(one.startswith(below) for one in self.folders)

    def of_folder(self, folder: str) -> tuple[StoredObject, ...]:
        """The objects of one folder, by name."""
        if folder not in self._sorted:
            entries = self.folders.get(folder, {})
            self._sorted[folder] = tuple(entries[name][0] for name in sorted(entries))
        return self._sorted[folder]

    def wipe(self) -> None:
        """Delete everything."""
        for folder in self.folders:
            self._touch(folder)
        self.folders = {}

    def snapshot(self) -> dict[str, bytes]:
        """A copy of all objects, as a backup program makes it."""
        return {name: data for entries in self.folders.values() for name, (_, data) in entries.items()}

    def restore(self, backup: dict[str, bytes], now_ms: int) -> None:
        """Replace the content by the copy; its objects are other ones of the same names."""
        self.wipe()
        for name, data in sorted(backup.items()):
            self.create(name, data, now_ms)

    def _touch(self, folder: str) -> None:
        self.changed[folder] = None
        self._sorted.pop(folder, None)
        self._by_rank.pop(folder, None)


@lru_cache(maxsize=65536)
def _rank(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest())


def _ranked(objects: Iterable[StoredObject]) -> tuple[tuple[int, StoredObject], ...]:
    return tuple(sorted(((_rank(stored.name), stored) for stored in objects), key=itemgetter(0)))
