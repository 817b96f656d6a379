"""Files without a name yet: in the staging folder of a root on a file system, until they are linked to a name.

``link`` refuses an existing name; ``rename`` would replace it silently. The name is durable before the call
returns: the call syncs the folder, and each folder above it that this process has not yet synced.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError, StorageError, UnsupportedStoreError
from stratalog.partitions.identity import NewId
from stratalog.partitions.store.local_folder import READ, RootFolder, SpecialFileError
from stratalog.partitions.store.local_rights import failure_of
from stratalog.partitions.store.protocol import LEFT_ALONE
from stratalog.partitions.store.rules import STAGING_FOLDER, Tally
from stratalog.partitions.unwritable import UnwritableStorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WRITE_BUFFER_BYTES = 1024 * 1024

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_ANSWER = frozenset({errno.EIO, errno.ETIMEDOUT})


class StagedFile:
    """An open file in the staging folder; implements ``Staged``, and ``StagedCopy`` once ``crc32`` is set."""

    def __init__(self, root: RootFolder, name: str, new_id: NewId, tally: Tally) -> None:
        self.target = root.path_of(name)
        self._root = root
        self._name = name
        self._new_id = new_id
        self._tally = tally
        self._temporary = new_id()
        with translated("create", self.target):
            self._staging = self._open_staging()
            try:
                self.descriptor = os.open(self._temporary, _NEW_FILE, 0o666, dir_fd=self._staging)
            except BaseException:
                os.close(self._staging)
                raise
        self._state = "open"
        self.size_bytes = 0
        self.crc32 = 0

    def _open_staging(self) -> int:
        """Raises: UnwritableStorageError if anything but a folder has the folder's name; OSError."""
        try:
            try:
                return self._root.open_folder(STAGING_FOLDER)
            except FileNotFoundError:
                with self._root.folder("") as top, suppress(FileExistsError):
                    os.mkdir(STAGING_FOLDER, dir_fd=top)
                return self._root.open_folder(STAGING_FOLDER)
        except (SpecialFileError, NotADirectoryError) as error:
            why = error.strerror
            if not isinstance(error, SpecialFileError):
                why = f"{self._root.path_of(STAGING_FOLDER)!r} is a file: {LEFT_ALONE}"
            raise UnwritableStorageError(f"cannot create {self.target!r}: {why}", self.target) from error

    def seal(self) -> None:
        """Make the bytes durable and close the file. No write may follow."""
        if self._state == "done":
            raise InvalidCallError(f"{self.target!r} has already been committed or aborted")
        if self._state == "sealed":
            return
        with translated("write", self.target):
            now = os.fstat(self.descriptor)
            milliseconds = now.st_mtime_ns // 1_000_000
            unique_ns = milliseconds * 1_000_000 + int(self._new_id(), 16) % 1_000_000
            os.utime(self.descriptor, ns=(now.st_atime_ns, unique_ns))
            os.fsync(self.descriptor)
            self.size_bytes = now.st_size
            self._state = "sealed"  # before closing: the descriptor is free even if that fails
            os.close(self.descriptor)

    def commit(self) -> bool:
        try:
            self.seal()
            created = self._give_name()
        finally:
            self.abort()
        self._tally.add(creates=1, written_bytes=self.size_bytes if created else 0)
        return created

    def replace(self) -> None:
        folder, _, last = self._name.rpartition("/")
        try:
            self.seal()
            with translated("replace", self.target), self._root.folder(folder, READ, make=True) as above:
                os.replace(self._temporary, last, src_dir_fd=self._staging, dst_dir_fd=above)
                os.fsync(above)
        finally:
            self.abort()
        self._tally.add(creates=1, written_bytes=self.size_bytes)

    def abort(self) -> None:
        if self._state == "done":
            return
        if self._state == "open":
            os.close(self.descriptor)
        self._state = "done"
        with suppress(OSError):  # ``sweep_staging`` removes it later
            os.unlink(self._temporary, dir_fd=self._staging)
        os.close(self._staging)

    def _give_name(self, *, again: bool = True) -> bool:
        """Link the durable file to its name, durably. False: the name is taken."""
        folder, _, last = self._name.rpartition("/")
        with translated("create", self.target), self._root.folder(folder, READ, make=True) as above:
            try:
                created = self._link(last, above)
            except FileNotFoundError:
                if not again:
                    raise
            else:
                # Sync even if the name exists: its creator may not have synced it yet, and the caller will rely on
                # the file.
                try:
                    os.fsync(above)
                except OSError as error:
                    raise OutcomeUnknownError(
                        f"{self.target!r} exists but may not survive a crash: {error.strerror}"
                    ) from error
                return created
        return self._give_name(again=False)  # another process has just removed the folder

    def _link(self, last: str, above: int) -> bool:
        """Give the file its name by a hard link. False: the name is taken.

        Raises: OSError, UnsupportedStoreError without hard links, OutcomeUnknownError.
        """
        try:
            os.link(self._temporary, last, src_dir_fd=self._staging, dst_dir_fd=above, follow_symlinks=False)
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and then gets an error because of its own success: both
            # names are the same file. (The number of links proves nothing: a copy of the root by hard links adds
            # some.)
            ours = os.stat(self._temporary, dir_fd=self._staging, follow_symlinks=False)
            return os.path.samestat(ours, os.stat(last, dir_fd=above, follow_symlinks=False))
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsupportedStoreError(
                    f"{self.target!r} is on a file system without hard links, so without exclusive create: for a "
                    "mounted bucket (/Volumes, /dbfs, FUSE) use the bucket's address, s3://..., abfss://... or "
                    "gs://...; otherwise a folder on a disk or NFS"
                ) from error
            if error.errno in _NO_ANSWER:
                raise OutcomeUnknownError(f"linking {self.target!r}: {error.strerror}") from error
            raise
        return True


class StagedFileWriter(StagedFile):
    """A staged file with a buffered writer; implements ``StagedWriter``."""

    def __init__(self, root: RootFolder, name: str, new_id: NewId, tally: Tally) -> None:
        super().__init__(root, name, new_id, tally)
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
    """A file whose errors name the target object."""

    def __init__(self, descriptor: int, target: str) -> None:
        super().__init__(descriptor, "wb", closefd=False)  # the caller may close the file before it is sealed
        self._target = target

    def write(self, data: ReadableBuffer, /) -> int:
        with translated("write", self._target):
            return super().write(data)


@contextmanager
def translated(action: str, path: str) -> Iterator[None]:
    """Translate system errors into StorageError, or CorruptionError if an object of another kind is in the way."""
    try:
        yield
    except OSError as error:
        raise failure_of(action, path, error) from error


def write_all(descriptor: int, data: bytes, start: int) -> None:
    """Write all bytes starting at position ``start``. Raises: OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, start)
        view, start = view[written:], start + written
