"""The history of an Iceberg table that may have erased values (``tiering.erasure``), and how it is deleted.

An entry of a manifest has the minimum and maximum of each column of its data file, and these are data. The
snapshot that removes a file lists it once more, as deleted. So a snapshot is *clean* only if each entry of its
manifests, also of a deleted file, names a segment that the Delta table lists.

The order of steps, after the Delta table has recorded the erasure
    1. The Iceberg table follows the Delta table: one snapshot without the replaced segments, which readers use
       from then on. This comes before the objects are deleted (step 5 of ``erasure``).
    2. The rest begins when no object of older versions waits for its readers any more, and the history of the
       Delta table is gone (step 6 of ``erasure``): after the same delay, or at once with ``--now``.
    3. All files of the table are listed.
    4. A snapshot without changes is committed after this listing (!). It has no entries of deleted files. Each
       commit names the snapshot that it builds on. So a job that has written one of the listed files, and has not
       committed it yet, loses the race, and no snapshot will ever name that file.
    5. One commit removes the snapshots that are not clean from the table's metadata.
    6. The listed lists and manifests that no snapshot names any more are deleted.
    7. All files are listed again, twice. Each older metadata file of the first of these listings is deleted that
       names a list which is not in the second one. (A writer writes the list first.)
    8. The metadata of the cluster forget the offsets (step 7 of ``erasure``).
    Without anything to delete, nothing is committed. A crash between any two steps leaves a table that all readers
    can read: the next run begins at step 1, and its listing has the files that are left. Two runs at once race for
    the commits of steps 4 and 5, and the loser begins again. Each deletes only what was listed before its own
    commit of step 4.

    Clean snapshots keep their files. A reader that planned with one that is not clean fails when its files are
    gone, as it does when their segments are. A catalog that does not answer delays only this history: the objects
    are deleted nevertheless. Readers of the Iceberg table then fail until it has followed, as after retention.

The erasure is not finished while one of these is left, which the report names: a snapshot that a tag or another
branch keeps; a manifest of another program with entries of deleted files beside others; files that are no lists,
manifests or metadata. The table stays in the topic's configuration until then, so that it is not forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.tiering.iceberg_files import TableFiles, comparable

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

_AVRO, _METADATA, _HINT = ".avro", (".metadata.json", ".metadata.json.gz"), "version-hint.text"


class _NamedList(msgspec.Struct):
    manifest_list: str = msgspec.field(name="manifest-list", default="")


class _NamedLists(msgspec.Struct):
    snapshots: tuple[_NamedList, ...] = ()


Left = tuple[str, str]
"""A file or snapshot that is left and may have erased values, and the reason."""


@dataclass(frozen=True, slots=True)
class IcebergHistory:
    """A table after its history was deleted."""

    files: int
    """The table's own files that were deleted."""
    sequence_number: int
    """The least sequence number of the snapshots that are left; 0 without one."""
    left: tuple[Left, ...]
    overtaken: bool
    """Whether the present snapshot is not clean: the Delta table has changed meanwhile, or another program has
    changed the snapshot's manifests."""


@dataclass(frozen=True, slots=True)
class IcebergContents:
    """The segments that the metadata of a table name, and the table's own files."""

    files: int
    """The lists, manifests and metadata files."""
    sequence_number: int
    """The least of a snapshot; 0 without one."""
    segments: frozenset[tuple[str, int]]
    """The address of each data file that an entry names, also as deleted, with its number of rows."""
    unknown: tuple[Left, ...]
    """Files of which nobody knows whether they have erased values."""


def contents_of(table: Table, own: TableFiles) -> IcebergContents:
    """Read all entries of all snapshots. Raises: FileNotFoundError for a missing list or manifest; see
    ``TableFiles``."""
    files = own.walk()
    manifests = {one.manifest_path: one for each in table.snapshots() for one in each.manifests(table.io)}
    segments = {
        (entry.data_file.file_path, entry.data_file.record_count)
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    why = "no snapshot names it, so it may have statistics of erased records: erase again"
    unknown = [(file, why) for file in unnamed(files, named_by(table))] + unknown_files(files)
    return IcebergContents(len(files), least_number(table), frozenset(segments), tuple(unknown))


def least_number(table: Table) -> int:
    """The least sequence number of a table's snapshots; 0 without one."""
    return min((snapshot.sequence_number or 0 for snapshot in table.snapshots()), default=0)


def unclean_snapshots(table: Table, listed: Collection[str]) -> set[int]:
    """The snapshots with an entry that names none of these addresses, or with a missing file. Reads each manifest
    once."""
    clean: dict[str, bool] = {}

    def is_clean(manifest: ManifestFile) -> bool:
        if manifest.manifest_path not in clean:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            clean[manifest.manifest_path] = all(entry.data_file.file_path in listed for entry in entries)
        return clean[manifest.manifest_path]

    found = set()
    for snapshot in table.snapshots():
        try:
            if all(map(is_clean, snapshot.manifests(table.io))):
                continue
        except FileNotFoundError:
            pass
        found.add(snapshot.snapshot_id)
    return found


def named_by(table: Table) -> set[str]:
    """The lists and manifests of all snapshots, in canonical spelling."""
    found: set[str] = set()
    for snapshot in table.snapshots():
        found.add(comparable(snapshot.manifest_list))
        with suppress(FileNotFoundError):
            found |= {comparable(manifest.manifest_path) for manifest in snapshot.manifests(table.io)}
    return found


def unnamed(files: Iterable[str], named: Collection[str]) -> list[str]:
    """The lists and manifests among a table's files that no snapshot names."""
    return sorted(file for file in files if file.endswith(_AVRO) and file not in named)


def unknown_files(files: Iterable[str]) -> list[Left]:
    """The files that are neither lists, manifests nor metadata."""
    why = "it is no file of the table's metadata, so nobody knows what it has: remove it by hand"
    return [(file, why) for file in sorted(files) if not file.endswith((_AVRO, *_METADATA, _HINT))]


def outdated_metadata(
    files: Mapping[str, str], later: Collection[str], own: TableFiles, present: str
) -> tuple[list[str], list[Left]]:
    """The metadata files, except the present one, that name a list which is not there; and those that cannot be
    read. ``files`` and ``later`` are two walks in this order: a list is written before the metadata that name it.
    """
    found: list[str] = []
    left: list[Left] = []
    for name, address in sorted(files.items()):
        if not name.endswith(_METADATA) or name == comparable(present):
            continue
        try:
            snapshots = parse_json(own.read_metadata(address), _NamedLists).snapshots
        except FileNotFoundError:
            continue
        except ValueError as error:
            left.append((name, f"it is no metadata of a table ({error}): remove it by hand, then erase again"))
            continue
        if any(comparable(one.manifest_list) not in later for one in snapshots):
            found.append(name)
    return found, left
