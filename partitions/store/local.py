"""Storage on a POSIX file system: ``file://``.

A file is written under a temporary name in ``.staging`` of the same root, made durable, and then *linked* to its
name (``local_staged``). Every path is opened from the root without following a link (``local_folder``). An error
names a link, FIFO, device or other volume, and the object stays unchanged. No call reads, writes or deletes
outside the root.

On NFS, mount with ``actimeo=0,lookupcache=none``: a cached listing hides the latest files of other clients, which
"write, then check" must see.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import BinaryIO

from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    CorruptSegmentError,
    LogDirError,
    SourceChangedError,
    StorageError,
    StorageRefusedError,
    StratalogError,
)
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.paths import probe_name
from stratalog.partitions.store.local_behind import LookBehind, look_behind
from stratalog.partitions.store.local_birth import birth_of
from stratalog.partitions.store.local_copy import copy_file
from stratalog.partitions.store.local_folder import READ, RootFolder, SpecialFileError, kind_of
from stratalog.partitions.store.local_listing import LOOK_AGAIN_S, FolderInLogError, LocalListing, Scan, Scanner
from stratalog.partitions.store.local_rights import NOT_ALLOWED, failure_of, refusal
from stratalog.partitions.store.local_scan import (
    CrowdedFolderError,
    Entry,
    Listed,
    at_once,
    in_order,
    names_of,
    scan_folder,
    version_of,
)
from stratalog.partitions.store.local_staged import StagedFile, StagedFileWriter, translated, write_all
from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoredObject
from stratalog.partitions.store.reader import RangeReader
from stratalog.partitions.store.rules import (
    STAGING_FOLDER,
    Tally,
    byte_range,
    check_exclusive_create,
    check_name,
    copy_in_pieces,
    folder_prefix,
    stable_listing,
)
from stratalog.partitions.store.storage_time import StorageTime
from stratalog.partitions.store.two_scans import names_together, objects_together

PIECE_BYTES = 8 * 1024 * 1024

_CLOCK = SystemClock()


class LocalStore:
    """The files below an existing folder; the store never creates the folder itself.

    ``version`` is inode, mtime and size. An inode that a deletion freed may be reused within one tick of the
    kernel's clock, so the mtime's digits below a millisecond come from ``new_id``.
    """

    def __init__(self, root: str, clock: Clock = _CLOCK, new_id: NewId = random_id) -> None:
        self.root = os.path.normpath(root)
        self.uri = f"file://{self.root}"
        self._clock = clock
        self._new_id = new_id
        self._folder = RootFolder(self.root)
        self._tally = Tally()
        self.counts = self._tally.counts
        self._time = StorageTime()
        self._doubts = 0
        """The number of files that had changed after their listing. When it grows, earlier listings are no longer
        reused.
        """

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str, Clock, NewId]]:
        return LocalStore, (self.root, self._clock, self._new_id)

    def create(self, name: str, data: bytes) -> bool:
        staged = StagedFile(self._folder, check_name(name), self._new_id, self._tally)
        try:
            with translated("write", staged.target):
                write_all(staged.descriptor, data, 0)
            return staged.commit()
        finally:
            staged.abort()

    def stage_writer(self, name: str) -> StagedWriter:
        return StagedFileWriter(self._folder, check_name(name), self._new_id, self._tally)

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """See ``Store.stage_copy``. From another ``LocalStore`` one pass copies file to file; otherwise pieces are
        read in parallel.
        """
        staged = StagedFile(self._folder, check_name(name), self._new_id, self._tally)
        try:
            if isinstance(source, LocalStore):
                source._copy_to(staged, source_object)
            else:

                def put(_index: int, start: int, data: bytes, _crc32: int) -> None:
                    with translated("write", staged.target):
                        write_all(staged.descriptor, data, start)

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
        path = self.path_of(name)
        self._tally.add(reads=1)
        with _file_errors("read", path):
            descriptor, now = self._folder.open_file(name)
            try:
                low, high = byte_range(start, end, now.st_size)
                data = _read_all(descriptor, low, high)
            finally:
                os.close(descriptor)
        self._tally.add(read_bytes=len(data))
        return data

    def stat(self, name: str) -> StoredObject:
        path = self.path_of(name)
        folder, _, last = name.rpartition("/")
        self._tally.add(reads=1)
        with _file_errors("look for", path), self._folder.folder(folder) as above:
            now = os.stat(last, dir_fd=above, follow_symlinks=False)
            if stat.S_ISDIR(now.st_mode):
                raise FileNotFoundError(path)
            if not stat.S_ISREG(now.st_mode):
                raise SpecialFileError(path, kind_of(now.st_mode))
            born = birth_of(last, above)
        version = version_of(now.st_ino, now.st_mtime_ns, now.st_size)
        return StoredObject(name, now.st_size, now.st_mtime_ns // 1_000_000, version, born)

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. The reader can still read the file after its name was deleted."""
        path = self.path_of(source_object.name)
        descriptor = self._open_listed(source_object)

        def fetch(start: int, end: int) -> bytes:
            with translated("read", path):
                data = _read_all(descriptor, start, end)
            self._tally.add(reads=1, read_bytes=len(data))
            return data

        return RangeReader(source_object.size_bytes, fetch, lambda: os.close(descriptor)).as_file()

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        """See ``Store.list``. Any failure to read folders is treated as a missing root."""
        folder = folder_prefix(prefix)
        if known is not None and not after:
            with suppress(FolderInLogError):  # the content of the folder is also listed
                return self._listed_again(folder, known)
        if after:
            return self._listed(folder, lambda: look_behind(self._folder, folder, after), _of_looks).files
        return self._scanned(folder, in_order, _of_objects)

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self._scanned(folder_prefix(prefix), in_order, at_once)

    def names(self, prefix: str) -> frozenset[str]:
        return self._scanned(folder_prefix(prefix), names_of, _of_names)

    def delete(self, names: Iterable[str]) -> None:
        """See ``Store.delete``. Empty folders remain, because another process may be about to link a file
        there.
        """
        by_folder: dict[str, list[str]] = {}
        for name in names:
            by_folder.setdefault(check_name(name).rpartition("/")[0], []).append(name)
        failed: dict[str, OSError] = {}
        for folder, doomed in by_folder.items():
            self._tally.add(deletes=len(doomed))
            try:
                with self._folder.folder(folder) as above:
                    for name in doomed:
                        self._unlink(above, name, failed)
            except (FileNotFoundError, NotADirectoryError) as error:
                if not os.path.isdir(self.root):  # unmounted, for example: the files still exist
                    raise StorageError(f"cannot delete {self.path_of(doomed[0])!r}: {self._no_root()}") from error
            except OSError as error:
                failed[self.path_of(doomed[0])] = error
        what = f"cannot delete {', '.join(f'{path!r} ({error.strerror})' for path, error in failed.items())}"
        for path, why in failed.items():
            if isinstance(refused := refusal("delete", path, what, why.errno), StorageRefusedError):
                raise refused
        if failed:
            raise StorageError(what)

    def uri_of(self, name: str) -> str:
        """See ``Store.uri_of``; the path is literal, without percent-escapes."""
        return f"file://{self.path_of(name)}"

    def path_of(self, name: str) -> str:
        """The path of an object on this machine. (A read by path follows links.)

        Raises: InvalidCallError when ``name`` would lead out of the root.
        """
        return self._folder.path_of(check_name(name))

    def check(self) -> None:
        if not os.path.isdir(self.root):
            raise LogDirError(f"{self.root!r} is not a folder: create it, or mount its volume")
        check_exclusive_create(self, probe_name(self._new_id()))

    def now_ms(self) -> int | None:
        """See ``Store.now_ms``: the time of a file that is created in the staging folder and immediately deleted.
        None if there is no such folder, or this process is not allowed to create a file there.
        """
        if not os.path.isdir(self._folder.path_of(STAGING_FOLDER)):
            return None  # the volume may be unmounted: create nothing in the empty folder
        return self._time.now_ms(self._ask_for_time)

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """See ``Store.sweep_staging``. A writer that is still alive then fails with StorageError. Anything but a
        file is foreign, and remains.
        """
        removed = 0
        with (
            translated("sweep", self._folder.path_of(STAGING_FOLDER)),
            self._missing_is_empty(),
            self._folder.folder(STAGING_FOLDER, READ) as staging,
            os.scandir(staging) as entries,
        ):
            now_ms = agreed_ms(self._clock, self)
            if now_ms is None and not os.access(".", os.W_OK, dir_fd=staging):
                read_only = os.statvfs(staging).f_flag & os.ST_RDONLY
                number = errno.EROFS if read_only else errno.EACCES
                raise OSError(number, os.strerror(number))
            for entry in entries if now_ms is not None else ():
                with suppress(FileNotFoundError):
                    now = entry.stat(follow_symlinks=False)
                    age_ms = (now_ms or 0) - now.st_mtime_ns // 1_000_000
                    if stat.S_ISREG(now.st_mode) and age_ms > older_than_ms:
                        if not dry_run:
                            os.unlink(entry.name, dir_fd=staging)
                        removed += 1
        return removed

    def staged(self) -> frozenset[str]:
        with (
            translated("list", self._folder.path_of(STAGING_FOLDER)),
            self._missing_is_empty(),
            self._folder.folder(STAGING_FOLDER, READ) as staging,
            os.scandir(staging) as entries,
        ):
            return frozenset(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        return frozenset()

    @contextmanager
    def _missing_is_empty(self) -> Iterator[None]:
        """A context in which a missing folder ends the block. Raises: BrokerUnreachableError if the root itself is
        missing.
        """
        try:
            yield
        except FileNotFoundError:
            self._check_root()

    def _check_root(self) -> None:
        """Raises: BrokerUnreachableError."""
        if not os.path.isdir(self.root):
            raise BrokerUnreachableError(self._no_root())

    def _no_root(self) -> str:
        return f"the root {self.root!r} does not exist: is its volume mounted?"

    def _ask_for_time(self) -> None:
        with suppress(StratalogError):
            staged = StagedFile(self._folder, STAGING_FOLDER, self._new_id, self._tally)
            try:
                self._time.update(os.fstat(staged.descriptor).st_mtime_ns // 1_000_000)
            finally:
                staged.abort()

    def _listed_again(self, folder: str, known: Sequence[StoredObject]) -> Sequence[StoredObject]:
        """The files of a log's folder, as an update of an earlier listing. Raises: FolderInLogError; see
        ``_listed``.
        """
        asked_s, doubts = self._clock.monotonic_s(), self._doubts
        scanner, last = Scanner(self._folder, folder, _CLOCK.now_ms, {}), None
        if isinstance(known, LocalListing) and known.doubts == doubts and asked_s < known.asked_s + LOOK_AGAIN_S:
            scanner.files, asked_s, last = known.scan.files, known.asked_s, known.scan

        def scan_all(scan: Callable[[], Scan], where: str) -> Scan:
            if last is not None and last.is_snapshot and scanner.unchanged(last.stamp):
                self._tally.add(reads=1)
                return last
            return stable_listing(scan, where, scanner.together, lambda found: found.is_snapshot)

        found = self._listed(folder, scanner.scan, scan_all)
        return known if found is last else LocalListing.of(found, known, asked_s, doubts)

    def _scanned(
        self,
        folder: str,
        collect: Callable[[Iterator[Entry]], Listed],
        rule: Callable[[Callable[[], Listed], str], Listed],
    ) -> Listed:
        """The result of a rule for scans of a whole folder. Raises: see ``_listed``."""
        return self._listed(folder, lambda: collect(scan_folder(self._folder, folder)), rule)

    def _listed(
        self, folder: str, scan: Callable[[], Listed], rule: Callable[[Callable[[], Listed], str], Listed]
    ) -> Listed:
        """The result of a rule for scans. Raises: BrokerUnreachableError, CorruptionError; errors of the rule."""

        def counted() -> Listed:
            self._tally.add(lists=1)
            return scan()

        try:
            listed = rule(counted, self._folder.path_of(folder))
            if not listed:
                self._check_root()
        except (SpecialFileError, CrowdedFolderError) as error:
            raise CorruptionError(f"cannot list {folder!r} of {self.root!r}: {error.strerror}") from error
        except OSError as error:
            if error.errno in NOT_ALLOWED:  # the root exists, but this user cannot read it
                raise failure_of("list", self._folder.path_of(folder), error) from error
            raise BrokerUnreachableError(f"cannot list {self.root!r}: {error.strerror}") from error
        return listed

    def _unlink(self, above: int, name: str, failed: dict[str, OSError]) -> None:
        """Delete one name, or record the reason why that failed."""
        last, path = name.rpartition("/")[2], self._folder.path_of(name)
        try:
            kind = kind_of(os.stat(last, dir_fd=above, follow_symlinks=False).st_mode)
            if kind:
                raise SpecialFileError(path, kind)
            os.unlink(last, dir_fd=above)
        except FileNotFoundError:
            return
        except OSError as error:
            failed[path] = error

    def _copy_to(self, staged: StagedFile, source_object: StoredObject) -> None:
        """Copy a listed file of this store into a staged file of this or another store."""
        origin = self._open_listed(source_object)
        try:
            with translated("copy to", staged.target):
                staged.crc32 = copy_file(origin, staged.descriptor, source_object.size_bytes)
            self._check_same(os.fstat(origin), source_object, self.path_of(source_object.name))
        finally:
            os.close(origin)

    def _check_same(self, now: os.stat_result, listed: StoredObject, path: str) -> None:
        """Check that the open file is the listed file. Raises: SourceChangedError."""
        version = version_of(now.st_ino, now.st_mtime_ns, now.st_size)
        if (version != listed.version) if listed.version else (now.st_size != listed.size_bytes):
            self._doubts += 1
            raise SourceChangedError(f"{path!r} has been replaced since it was listed: list it again")

    def _open_listed(self, listed: StoredObject) -> int:
        """A descriptor of the listed file.

        Raises: SourceChangedError, CorruptSegmentError, StorageError.
        """
        path = self.path_of(listed.name)
        try:
            with translated("open", path):
                try:
                    descriptor, now = self._folder.open_file(listed.name)
                except FileNotFoundError as error:
                    raise SourceChangedError(
                        f"{path!r} has been deleted since it was listed: list it again"
                    ) from error
                except SpecialFileError as error:
                    raise CorruptSegmentError(error.strerror) from error
        except CorruptSegmentError as error:
            error.file = listed.name
            raise
        try:
            self._check_same(now, listed, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _of_looks(look: Callable[[], LookBehind], where: str) -> LookBehind:
    return stable_listing(look, where, LookBehind.together, attrgetter("is_snapshot"))


def _of_objects(scan: Callable[[], Sequence[StoredObject]], where: str) -> Sequence[StoredObject]:
    return stable_listing(scan, where, objects_together)


def _of_names(scan: Callable[[], frozenset[str]], where: str) -> frozenset[str]:
    return stable_listing(scan, where, names_together)


@contextmanager
def _file_errors(action: str, path: str) -> Iterator[None]:
    """Like ``translated``; a missing name is a FileNotFoundError, a name that is not a file a CorruptionError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except SpecialFileError as error:
        raise CorruptionError(error.strerror) from error
    except OSError as error:
        raise failure_of(action, path, error) from error


def _read_all(descriptor: int, start: int, end: int) -> bytes:
    """The bytes ``[start, end)``; fewer if the file ends earlier."""
    pieces = []
    while start < end:
        piece = os.pread(descriptor, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
