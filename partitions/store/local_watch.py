"""The names that are added to a folder and removed from it, as the kernel reports them (``inotify``).

A driver that appends repeatedly looks for the few names after the end of a log, in a folder that may hold
thousands of others. The kernel reports each change of a name, so that one scan is enough for many such calls.

A report is as good as a scan, because the kernel queues it before it unlocks the folder (``fsnotify_create``,
``fsnotify_link`` and ``fsnotify_move`` in ``fs/namei.c``), and each new name needs that lock. So if a process
creates a name and then reads the reports, it gets a report for every name that was created before its own. This
holds for all processes of the kernel, in any container, but not for changes by another machine: the caller watches
only file systems that this kernel alone changes.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

MOST_FOLDERS = 256
"""The maximum number of folders that a process watches. The kernel allows 8,192 watches per user, or more."""
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0)
_ADDED = 0x100 | 0x80
"""``IN_CREATE``, including that of a hard link, and ``IN_MOVED_TO``."""
_REMOVED = 0x200 | 0x40
"""``IN_DELETE`` and ``IN_MOVED_FROM``."""
_OVERFLOW = 0x4000
_ONLY_FOLDERS = 0x01000000
_EVENT = struct.Struct("=iIII")
"""``struct inotify_event``: watch, mask, cookie, bytes of the name that follows."""
_READ_BYTES = 64 * 1024


@dataclass(slots=True)
class _Watched:
    """A folder, and its names that sort after ``after``."""

    after: str
    names: set[str] | None = None
    """None until the first scan has ended."""
    changes: list[tuple[str, bool]] = field(default_factory=list)
    """Names that were added (True) or removed since then, in this order."""


class Watches:
    """The watched folders of a process. Threads may share this object; a forked child starts without watched
    folders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._watched: OrderedDict[int, _Watched] = OrderedDict()

    def names_behind(
        self, folder: int, after: str, scan: Callable[[], set[str]], watchable: Callable[[], bool]
    ) -> set[str] | None:
        """The names of a folder, given by its descriptor, that sort after ``after``: exactly the names at some
        moment during this call. ``scan`` returns all names of the folder; it is called once, and again for an
        earlier ``after``. None: the folder is not ``watchable``, or the kernel cannot watch it now. Raises: errors
        from ``scan``.
        """
        with self._lock:
            number = self._number(folder, after, watchable)
            if number is None:
                return None
            watched = self._watched[number]
            if watched.names is not None:
                return self._present(number, after)
        try:
            names = scan()
        except BaseException:
            with self._lock:
                self._watched.pop(number, None)
            raise
        with self._lock:
            if self._watched.get(number) is not watched:
                return None
            watched.names = {name for name in names if name > after}
            return self._present(number, after)

    def _number(self, folder: int, after: str, watchable: Callable[[], bool]) -> int | None:
        """The kernel's number for the folder, which is watched from now on; None if that is impossible, or while
        another thread scans the folder. The kernel has one number for each folder, and does not use it again.
        """
        functions = _functions()
        if functions is None:
            return None
        if self._descriptor is None:
            descriptor = functions.inotify_init1(_NONBLOCK | _CLOEXEC)
            if descriptor < 0:
                return None
            self._descriptor = descriptor
        path = b"/proc/self/fd/%d" % folder
        number = functions.inotify_add_watch(self._descriptor, path, _ADDED | _REMOVED | _ONLY_FOLDERS)
        if number < 0:
            return None
        known = self._watched.get(number)
        if known is None and not watchable():
            functions.inotify_rm_watch(self._descriptor, number)
            return None
        if known is not None and known.names is None:
            return None
        if known is None or after < known.after:
            self._watched[number] = _Watched(after)
        self._watched.move_to_end(number)
        while len(self._watched) > MOST_FOLDERS:
            functions.inotify_rm_watch(self._descriptor, self._watched.popitem(last=False)[0])
        return int(number)

    def _present(self, number: int, after: str) -> set[str] | None:
        self._drain()
        watched = self._watched.get(number)
        if watched is None or watched.names is None:
            return None
        for name, added in watched.changes:
            (watched.names.add if added else watched.names.discard)(name)
        watched.changes.clear()
        watched.after = after
        watched.names = {name for name in watched.names if name > after}
        return set(watched.names)

    def _drain(self) -> None:
        """Read all reports. If the queue is full, the kernel drops reports, and then the content of no folder is
        known.
        """
        assert self._descriptor is not None
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, size = _EVENT.unpack_from(data, at)
                name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0"))
                at += _EVENT.size + size
                if mask & _OVERFLOW:
                    self._close()
                    return
                watched = self._watched.get(number)
                if watched is None:
                    continue
                if not mask & (_ADDED | _REMOVED):  # the folder was deleted, or its volume unmounted
                    del self._watched[number]
                elif name > watched.after:
                    watched.changes.append((name, bool(mask & _ADDED)))

    def _close(self) -> None:
        self._watched.clear()
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def forked(self) -> None:
        """Run in a forked child, because reports that the child reads would be missing in the parent."""
        self._lock = threading.Lock()
        self._close()


WATCHES = Watches()
os.register_at_fork(after_in_child=WATCHES.forked)


@cache
def _functions() -> ctypes.CDLL | None:
    """The C library; None if it cannot watch folders."""
    try:
        library = ctypes.CDLL(None)
        for name in ("inotify_init1", "inotify_add_watch", "inotify_rm_watch"):
            getattr(library, name).restype = ctypes.c_int
    except (AttributeError, OSError):
        return None
    library.inotify_init1.argtypes = [ctypes.c_int]
    library.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    library.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
    return library
