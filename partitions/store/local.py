"""Storage on a POSIX file system: ``file://``.

A file is written under a temporary name in ``.staging`` of the same root, made durable, and then
*linked* to its name: ``link`` refuses a name that is taken, ``rename`` would replace it silently. The
name is durable before anybody is told about it: the folder is synced, and so is every folder on the
way that this process has not synced before.

On NFS, mount with ``actimeo=0,lookupcache=none``: a cached listing hides what another client has just
created, and "write, then check" rests on seeing it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from partitions.clock import Clock, SystemClock
from partitions.errors import (
    BrokerUnreachableError,
    InvalidCallError,
    LogDirError,
    OutcomeUnknownError,
    SourceChangedError,
    StorageError,
    UnsupportedStoreError,
)
from partitions.identity import NewId, random_id
from partitions.store.local_birth import birth_of
from partitions.store.local_copy import copy_file
from partitions.store.local_scan import (
    Entry,
    Listed,
    at_once,
    in_order,
    names_of,
    objects,
    scan_folder,
    version_of,
)
from partitions.store.protocol import StagedCopy, StagedWriter, Store, StoredObject
from partitions.store.reader import RangeReader
from partitions.store.rules import (
    STAGING_FOLDER,
    Tally,
    byte_range,
    check_exclusive_create,
    check_name,
    copy_in_pieces,
    folder_prefix,
    settle,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 8 * 1024 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024

_CLOCK = SystemClock()
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_ANSWER = frozenset({errno.EIO, errno.ETIMEDOUT})


class LocalStore:
    """The files below a folder that exists; the folder itself is never created.

    ``version`` is inode, mtime and size. An inode that a deletion freed may be reused within one tick of
    the kernel's clock, so the digits of the mtime below a millisecond are drawn from ``new_id``.
    """

    def __init__(self, root: str, clock: Clock = _CLOCK, new_id: NewId = random_id) -> None:
        self.root = os.path.normpath(root)
        self.uri = f"file://{self.root}"
        self._clock = clock
        self._new_id = new_id
        self._staging = os.path.join(self.root, STAGING_FOLDER)
        self._tally = Tally()
        self.counts = self._tally.counts
        self._durable_folders: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str, Clock, NewId]]:
        return LocalStore, (self.root, self._clock, self._new_id)

    def create(self, name: str, data: bytes) -> bool:
        """See ``Store.create``."""
        staged = StagedFile(self, name)
        try:
            with _translated("write", staged.target):
                _write_all(staged.descriptor, data, 0)
            return staged.commit()
        finally:
            staged.abort()

    def stage_writer(self, name: str) -> StagedWriter:
        """See ``Store.stage_writer``."""
        return _StagedFileWriter(self, name)

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """See ``Store.stage_copy``. From another ``LocalStore`` one pass from file to file; else pieces are read
        a few at once."""
        staged = StagedFile(self, name)
        try:
            if isinstance(source, LocalStore):
                self._copy_local(source.path_of(source_object.name), source_object, staged)
            else:

                def put(_index: int, start: int, data: bytes, _crc32: int) -> None:
                    with _translated("write", staged.target):
                        _write_all(staged.descriptor, data, start)

                staged.crc32 = copy_in_pieces(source, source_object, PIECE_BYTES, put)
            staged.seal()
            if staged.size_bytes != source_object.size_bytes:
                raise StorageError(
                    f"{staged.target!r}: {staged.size_bytes} of {source_object.size_bytes} bytes arrived"
                )
        except BaseException:
            staged.abort()
            raise
        self._tally.add(copies=1)
        return staged

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See ``Store.read``."""
        path = self.path_of(name)
        self._tally.add(reads=1)
        with _translated("read", path, missing_is_missing=True):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                low, high = byte_range(start, end, os.fstat(descriptor).st_size)
                data = _read_all(descriptor, low, high)
            finally:
                os.close(descriptor)
        self._tally.add(read_bytes=len(data))
        return data

    def stat(self, name: str) -> StoredObject:
        """See ``Store.stat``."""
        path = self.path_of(name)
        self._tally.add(reads=1)
        with _translated("look for", path, missing_is_missing=True):
            now = os.stat(path)
        if not stat.S_ISREG(now.st_mode):
            raise FileNotFoundError(path)
        version = version_of(now.st_ino, now.st_mtime_ns, now.st_size)
        return StoredObject(name, now.st_size, now.st_mtime_ns // 1_000_000, version, birth_of(path))

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. The reader keeps the file's bytes, also when its name is deleted."""
        path = self.path_of(source_object.name)
        descriptor = _open_listed(path, source_object)

        def fetch(start: int, end: int) -> bytes:
            with _translated("read", path):
                data = _read_all(descriptor, start, end)
            self._tally.add(reads=1, read_bytes=len(data))
            return data

        return RangeReader(source_object.size_bytes, fetch, lambda: os.close(descriptor)).as_file()

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """See ``Store.list``. Any failure to read folders means that the root is not there."""
        return objects(self._scanned(folder_prefix(prefix), in_order, settle))

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        """See ``Store.walk``."""
        return objects(self._scanned(folder_prefix(prefix), in_order, at_once))

    def names(self, prefix: str) -> frozenset[str]:
        """See ``Store.names``."""
        return self._scanned(folder_prefix(prefix), names_of, settle)

    def delete(self, names: Iterable[str]) -> None:
        """See ``Store.delete``. Folders that become empty stay: somebody may be about to link into them."""
        failed = []
        for path in [self.path_of(name) for name in names]:
            self._tally.add(deletes=1)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failed.append(f"{path!r} ({error.strerror})")
        if failed:
            raise StorageError(f"cannot delete {', '.join(failed)}")

    def uri_of(self, name: str) -> str:
        """See ``Store.uri_of``; taken literally, without percent-escapes."""
        return f"file://{self.path_of(name)}"

    def path_of(self, name: str) -> str:
        """The path of an object on this machine.

        Raises: InvalidCallError when ``name`` would lead out of the root.
        """
        return os.path.join(self.root, check_name(name))

    def check(self) -> None:
        """See ``Store.check``."""
        if not os.path.isdir(self.root):
            raise LogDirError(f"{self.root!r} is no folder: create it, or mount its volume")
        check_exclusive_create(self, f".check-{self._new_id()}")

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """See ``Store.sweep_staging``. A writer that is alive after all fails with StorageError. What is no file
        was put there by somebody else, and stays."""
        before_ms = self._clock.now_ms() - older_than_ms
        removed = 0
        with (
            _translated("sweep", self._staging),
            suppress(FileNotFoundError),
            os.scandir(self._staging) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):
                    now = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(now.st_mode) and now.st_mtime_ns // 1_000_000 < before_ms:
                        if not dry_run:
                            os.unlink(entry.path)
                        removed += 1
        return removed

    def _scanned(
        self,
        folder: str,
        collect: Callable[[Iterator[Entry]], Listed],
        rule: Callable[[Callable[[], Listed], str], Listed],
    ) -> Listed:
        """What scans of a folder come to by a rule.

        Raises: BrokerUnreachableError; what the rule raises.
        """
        path = os.path.join(self.root, folder)

        def scan() -> Listed:
            self._tally.add(lists=1)
            return collect(scan_folder(path, folder))

        try:
            listed = rule(scan, path)
            if not listed and not os.path.isdir(self.root):
                raise BrokerUnreachableError(f"the root {self.root!r} is not there: is its volume mounted?")
        except OSError as error:
            raise BrokerUnreachableError(f"cannot list {self.root!r}: {error.strerror}") from error
        return listed

    def _copy_local(self, path: str, source_object: StoredObject, staged: StagedFile) -> None:
        origin = _open_listed(path, source_object)
        try:
            with _translated("copy to", staged.target):
                staged.crc32 = copy_file(origin, staged.descriptor, source_object.size_bytes)
            _must_be(origin, source_object, path)
        finally:
            os.close(origin)

    # What follows is for the staged files below.

    def _new_temporary(self) -> tuple[str, int]:
        """A fresh file in the staging folder: its path, and a descriptor to write to."""
        path = os.path.join(self._staging, self._new_id())
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with _translated("create", path):
            try:
                return path, os.open(path, flags, 0o666)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(self._staging)
                return path, os.open(path, flags, 0o666)

    def _give_name(self, temporary: str, target: str) -> bool:
        """Link a durable temporary file to its name, durably. False: the name is taken."""
        folder = os.path.dirname(target)
        with _translated("create", target):
            self._make_durable(folder)
            try:
                created = _link(temporary, target)
            except FileNotFoundError:
                self._durable_folders.clear()  # somebody removed a folder that we knew
                self._make_durable(folder)
                created = _link(temporary, target)
        try:
            # Also when the name is taken: its creator may not have come to this point yet, and our caller
            # is going to act on what it finds there.
            _sync_folder(folder)
        except OSError as error:
            raise OutcomeUnknownError(f"{target!r} is there but may not survive: {error.strerror}") from error
        return created

    def _take_name(self, temporary: str, target: str) -> None:
        """Move a durable temporary file to its name, durably, whatever is there."""
        folder = os.path.dirname(target)
        with _translated("replace", target):
            self._make_durable(folder)
            os.replace(temporary, target)
            _sync_folder(folder)

    def _make_durable(self, folder: str) -> None:
        """Make the folder and those above it, up to the root, and have each survive a power cut. Folders
        found in place are synced too, once: whoever made them may not have come to that."""
        if folder in self._durable_folders or folder == self.root:
            return
        parent = os.path.dirname(folder)
        self._make_durable(parent)
        with suppress(FileExistsError):
            os.mkdir(folder)
        _sync_folder(parent)
        self._durable_folders.add(folder)


class StagedFile:
    """A file in the staging folder of a ``LocalStore``; ``Staged``, and ``StagedCopy`` once ``crc32`` is told."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self.target = store.path_of(name)
        self._store = store
        self._temporary, self.descriptor = store._new_temporary()
        self._state = "open"
        self.size_bytes = 0
        self.crc32 = 0

    def seal(self) -> None:
        """Make the bytes durable and close the file: nothing is written from here on."""
        if self._state != "open":
            return
        with _translated("write", self.target):
            now = os.fstat(self.descriptor)
            milliseconds = now.st_mtime_ns // 1_000_000
            unique_ns = milliseconds * 1_000_000 + int(self._store._new_id(), 16) % 1_000_000
            os.utime(self.descriptor, ns=(now.st_atime_ns, unique_ns))
            os.fsync(self.descriptor)
        self.size_bytes = now.st_size
        self._close()
        self._state = "sealed"

    def commit(self) -> bool:
        if self._state == "done":
            raise InvalidCallError(f"{self.target!r} was committed or aborted before")
        try:
            self.seal()
            created = self._store._give_name(self._temporary, self.target)
        finally:
            self.abort()
        self._store._tally.add(creates=1, written_bytes=self.size_bytes if created else 0)
        return created

    def replace(self) -> None:
        try:
            self.seal()
            self._store._take_name(self._temporary, self.target)
        finally:
            self.abort()
        self._store._tally.add(creates=1, written_bytes=self.size_bytes)

    def abort(self) -> None:
        if self._state == "done":
            return
        if self._state == "open":
            self._close()
        self._state = "done"
        with suppress(OSError):  # what cannot be removed now is swept later
            os.unlink(self._temporary)

    def _close(self) -> None:
        os.close(self.descriptor)


class _StagedFileWriter(StagedFile):
    """A staged file with a buffered writer in front; ``StagedWriter``."""

    def __init__(self, store: LocalStore, name: str) -> None:
        super().__init__(store, name)
        self.file: BinaryIO = io.BufferedWriter(_TranslatingFile(self.descriptor, self.target), WRITE_BUFFER_BYTES)

    def seal(self) -> None:
        if self._state == "open":
            self.file.close()
        super().seal()

    def abort(self) -> None:
        with suppress(StorageError):  # closing flushes, and the disk may be full
            self.file.close()
        super().abort()


class _TranslatingFile(io.FileIO):
    """A file whose failures name the object that it is going to be."""

    def __init__(self, descriptor: int, target: str) -> None:
        super().__init__(descriptor, "wb", closefd=False)  # who closes this may not be who seals the file
        self._target = target

    def write(self, data: ReadableBuffer, /) -> int:
        with _translated("write", self._target):
            return super().write(data)


@contextmanager
def _translated(action: str, path: str, missing_is_missing: bool = False) -> Iterator[None]:
    """Turn what the system refuses into StorageError; let FileNotFoundError through where it says so."""
    try:
        yield
    except OSError as error:
        if missing_is_missing and isinstance(error, FileNotFoundError):
            raise
        raise StorageError(f"cannot {action} {path!r}: {error.strerror}") from error


def _must_be(descriptor: int, listed: StoredObject, path: str) -> None:
    """Raises: SourceChangedError when the open file is not the one that was listed."""
    now = os.fstat(descriptor)
    same = (
        now.st_size == listed.size_bytes
        if not listed.version
        else (version_of(now.st_ino, now.st_mtime_ns, now.st_size) == listed.version)
    )
    if not same:
        raise SourceChangedError(f"{path!r} is not the file that was listed: list it again")


def _open_listed(path: str, listed: StoredObject) -> int:
    """A descriptor of the listed file.

    Raises: SourceChangedError, StorageError.
    """
    try:
        with _translated("open", path, missing_is_missing=True):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{path!r} is gone since it was listed: list it again") from error
    try:
        _must_be(descriptor, listed, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _link(temporary: str, target: str) -> bool:
    """Give a file a second name. False: the name is taken.

    Raises: OSError, UnsupportedStoreError without hard links, OutcomeUnknownError.
    """
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and is told of its own success: both names are of one file.
        # (Their number tells nothing: whoever copies a root by hard links gives the temporary file more of them.)
        return os.path.samefile(temporary, target)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise UnsupportedStoreError(f"no hard links, hence no exclusive create, at {target!r}") from error
        if error.errno in _NO_ANSWER:
            raise OutcomeUnknownError(f"linking {target!r}: {error.strerror}") from error
        raise
    return True


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes, start: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, start)
        view, start = view[written:], start + written


def _read_all(descriptor: int, start: int, end: int) -> bytes:
    """The bytes ``[start, end)``, fewer only where the file ends before."""
    pieces = []
    while start < end:
        piece = os.pread(descriptor, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
