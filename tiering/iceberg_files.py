"""Checks the file names in an Iceberg table's metadata before pyiceberg opens or deletes the files.

The user configures the catalog, which names the table's metadata. The files named in the metadata (manifest lists,
manifests, older metadata, which a commit deletes) come from storage that others can write. They must be inside the
table's own folder and, on a disk, regular files. The addresses of segments come from the remote log.

The files are also decompressed within bounds (``MOST_UNPACKED_BYTES``).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.printable import printable
from stratalog.tiering.iceberg_avro import unpacked_bytes

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from pyiceberg.table import Table

MOST_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of a manifest list or manifest; 100,000 files take about 20 MB."""
MOST_UNPACKED_BYTES: Final = 256 * 1024 * 1024
"""The maximum decompressed size of a manifest list or manifest."""
MOST_UNPACKED_IN_ALL_BYTES: Final = 2 * 1024 * 1024 * 1024
"""The maximum decompressed size of all manifest lists and manifests that one operation reads: about a million
files, each read three times.
"""
_REMEDY: Final = (
    "Find out who wrote this metadata, then drop the table from its catalog: the next vacuum creates it again"
)
_SAME_STORAGE: Final = {"s3a": "s3", "s3n": "s3", "": "file", "wasbs": "abfss"}
_METADATA_PATH: Final = "write.metadata.path"
_AZURE: Final = ("abfs", "abfss", "wasb", "wasbs")
_GZIP: Final = b"\x1f\x8b"


class TableFiles(FileIO):
    """Opens, writes and deletes files in one table's folder, and reads segments that ``allow`` has named, through
    the remote tier's file system instead of the catalog's.
    """

    def __init__(self, inner: FileIO, remote: FileIO, location: str, table: str) -> None:
        """``location`` is the address of the table's folder."""
        super().__init__(inner.properties)
        self._inner, self._remote, self._table = inner, remote, table
        self._location, self._folder = location, comparable(location) + "/"
        self._segments: frozenset[str] = frozenset()
        self._left_bytes = MOST_UNPACKED_IN_ALL_BYTES

    def allow(self, segments: Collection[str]) -> None:
        """Allow reading the segments at these addresses from now on."""
        self._segments = frozenset(comparable(each) for each in segments)

    def new_input(self, location: str) -> InputFile:
        """Raises: CorruptionError for a name outside the folder, a file that is not regular, or bytes that are
        refused."""
        if comparable(location) in self._segments:
            return self._remote.new_input(location)
        self.check(location)
        self._check_regular(location)
        found = self._inner.new_input(location)
        return self._read(location, found) if found.exists() else found

    def _check_regular(self, location: str) -> None:
        name = comparable(location)
        if name.startswith("file://"):
            path, folder = Path(name.removeprefix("file://")), Path(self._folder.removeprefix("file://"))
            inside = [each for each in (path, *path.parents) if each.is_relative_to(folder) and each != folder]
            if any(each.is_symlink() for each in inside) or (path.exists() and not path.is_file()):
                raise self._refused(location, "which is not a regular file")

    def _bytes_of(self, location: str, found: InputFile) -> bytes:
        if (size_bytes := len(found)) > MOST_BYTES:
            raise self._refused(location, f"which has {size_bytes} bytes, more than {MOST_BYTES}")
        with found.open() as source:
            return source.read(MOST_BYTES + 1)

    def read_metadata(self, location: str) -> bytes:
        """The JSON of a metadata file. Raises: CorruptionError as ``new_input``; FileNotFoundError; ValueError for
        a file that unpacks to more than ``MOST_UNPACKED_BYTES``."""
        self.check(location)
        self._check_regular(location)
        data = self._bytes_of(location, self._inner.new_input(location))
        return _gunzipped(data) if data.startswith(_GZIP) else data

    def walk(self) -> dict[str, str]:
        """The addresses of all files in the table's folder, by canonical spelling (``comparable``).

        Raises: InvalidCallError if the catalog's file system cannot list files.
        """
        return {comparable(each): each for each in _walk(self._inner, self._location)}

    def modified_ms(self, location: str) -> int | None:
        """When a file was last written, by the clock of its storage; None if the storage does not say. Raises:
        FileNotFoundError; InvalidCallError as ``walk``."""
        return _modified_ms(self._inner, location)

    def _read(self, location: str, found: InputFile) -> InputFile:
        data = self._bytes_of(location, found)
        try:
            self._left_bytes -= unpacked_bytes(data, min(MOST_UNPACKED_BYTES, self._left_bytes))
        except ValueError as error:
            raise CorruptionError(
                f"{printable(location)[:200]} of the Iceberg table {self._table} is not read: {error}. {_REMEDY}"
            ) from None
        return _Read(location, data)

    def new_output(self, location: str) -> OutputFile:
        """Raises: CorruptionError for a name outside the folder."""
        self.check(location)
        return self._inner.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raises: CorruptionError for a name outside the folder, or a file that is not regular."""
        address = location if isinstance(location, str) else location.location
        self.check(address)
        self._check_regular(address)
        self._inner.delete(location)

    def check(self, location: str) -> None:
        """Raises: CorruptionError for a name outside the folder."""
        name = comparable(location)
        if not name.startswith(self._folder) or {"..", "."} & set(name.split("/")):
            raise self._refused(location, f"which is not in {self._folder}")

    def _refused(self, location: str, why: str) -> CorruptionError:
        return CorruptionError(
            f"the metadata of the Iceberg table {self._table} names {printable(location)[:200]}, "
            f"{why}. Nothing was read or deleted there. {_REMEDY}"
        )


class _Read(InputFile):
    """A file whose bytes were read and checked."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        """Always true: the file existed when it was read."""
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Return the bytes that were read."""
        return io.BytesIO(self._data)


def guard(table: Table, name: str, remote: FileIO | None = None) -> TableFiles:
    """Restrict ``table`` to reading and deleting its own files, and check all names in its metadata. ``remote``
    opens the segments; None: the table's own file system.

    Raises: CorruptionError naming the first name outside the table's folder.
    """
    base = table.metadata_location.rpartition("/")[0]
    files = TableFiles(table.io, remote or table.io, base.removesuffix("/metadata"), name)
    for named in _names(table):
        files.check(named)
    table.io = files
    return files


def _names(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield metadata.location + "/metadata"
    if (path := metadata.properties.get(_METADATA_PATH)) is not None:
        yield path + "/metadata"
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)


def _walk(inner: FileIO, location: str) -> Iterator[str]:
    """The addresses of the files below ``location``."""
    system, top = _system_of(inner, location)
    if isinstance(system, FileSystem):
        files = system.get_file_info(FileSelector(top, recursive=True))
        found = [each.path for each in files if each.type != FileType.Directory]
    else:
        found = system.find(location)
    for path in found:
        yield location + path[path.index(top) + len(top) :]


def _modified_ms(inner: FileIO, location: str) -> int | None:
    system, path = _system_of(inner, location)
    if isinstance(system, FileSystem):
        info = system.get_file_info(path)
        if info.type == FileType.NotFound:
            raise FileNotFoundError(location)
        return None if info.mtime_ns is None else info.mtime_ns // 1_000_000
    try:
        return int(system.modified(location).timestamp() * 1000)
    except (NotImplementedError, KeyError, AttributeError):  # adlfs, gcsfs: their answers have no time
        return None


def _system_of(inner: FileIO, location: str) -> tuple[FileSystem | AbstractFileSystem, str]:
    """The file system that opens an address, and the path in that file system. Raises: InvalidCallError."""
    if type(inner).__name__ == "PyArrowFileIO":
        from pyiceberg.io.pyarrow import PyArrowFileIO

        assert isinstance(inner, PyArrowFileIO)
        scheme, netloc, path = PyArrowFileIO.parse_location(location, inner.properties)
        return inner.fs_by_scheme(scheme, netloc), path
    if type(inner).__name__ == "FsspecFileIO":
        from pyiceberg.io.fsspec import FsspecFileIO

        assert isinstance(inner, FsspecFileIO)
        uri = urlsplit(location)
        system = inner.get_fs(uri.scheme or "file", uri.hostname if uri.scheme in _AZURE else None)
        return system, system._strip_protocol(location)
    raise InvalidCallError(
        f"the catalog opens {printable(location)[:200]} with {type(inner).__name__}, which cannot list files: "
        "set its py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO"
    )


def _gunzipped(data: bytes) -> bytes:
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = unpacking.decompress(data, MOST_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if unpacking.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {MOST_UNPACKED_BYTES} bytes")
    return found


def comparable(location: str) -> str:
    """Converts an address to its canonical spelling, for comparison."""
    parts = urlsplit(location)
    scheme = _SAME_STORAGE.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}{unquote(parts.path) if scheme == 'file' else parts.path}"
