"""The history of an Iceberg table that may have erased values (``tiering.erasure``), and how it is deleted.

An entry of a manifest has the minimum and maximum of each column of its data file, and these values are data. The
snapshot that removes a file lists the file once more, as deleted. So a snapshot is *clean* only if each entry of
its manifests, including entries of deleted files, names a segment that the Delta table lists.

The order of steps, after the Delta table has recorded the erasure
    1. The Iceberg table follows the Delta table: a new snapshot lacks the replaced segments. If this snapshot is
       not clean, because it lists the segments as deleted, another snapshot follows. It changes nothing, and has
       no entries of deleted files. From then on, readers use the last snapshot. This step comes before the objects
       are deleted (step 5 of ``erasure``).
    2. Steps 3 to 8 begin when the objects of older versions and the history of the Delta table have been deleted
       (step 6 of ``erasure``): after ``file.delete.delay.ms``, or immediately with ``--now``.
    3. All files of the table are listed. A job may be about to commit a list or manifest if no snapshot names the
       file, and no metadata file that was ever the current one has named it. Such a file waits until
       ``file.delete.delay.ms``, rounded up to hours, has passed since it was written. With ``--now`` it does not
       wait. A file that waits is not deleted.
    4. If the current snapshot is not clean, or no snapshot names some other listed list or manifest, a snapshot
       without changes is committed after this listing. A commit to the main branch names the snapshot that it
       builds on. So a job that has written one of the listed files, and has not committed it yet, loses the race,
       and no snapshot will ever name that file. A job that builds on the current snapshot, which is clean, carries
       over no other manifests. A commit to another branch does not lose this race.
    5. One commit removes the snapshots that are not clean from the table's metadata.
    6. The table is read again. If other snapshots have been added or removed since step 5, the run goes back to
       step 3. The listed lists and manifests that no snapshot names any more, and that do not wait, are deleted.
    7. All files are listed again, twice, and the table is read again. If the table's metadata has changed, the
       run goes back to step 3, which finds a snapshot whose files step 6 has deleted. Each metadata file of the
       first listing, except the current one, is deleted if it names a list that is neither in the second listing
       nor named by the current metadata. (A writer writes the list before the metadata.) If such a file builds on
       the current metadata file, as its own log says, a job may be about to make it the current one. Then a
       snapshot without changes is committed, so that the job loses the race, and the run goes back to step 3.
    8. The offsets are removed from the metadata of the cluster (step 7 of ``erasure``).
    If there is nothing to delete, nothing is committed. After a crash between any two steps, all readers can read
    the table. The next run begins at step 1, and its listing has the files that remain. Two runs at once race for
    the commits of steps 4 and 5, and the loser goes back to step 3. Each run deletes only files that were listed
    before its own commit of step 4. The current metadata file is never deleted.

    So the table's metadata can be read, even if others commit meanwhile. But a job may commit lists or manifests
    that have waited longer than step 3 says, to another branch or in a second attempt. These files are deleted by
    then. So the branch cannot be read, and the report names it.

    Clean snapshots keep their files. A reader that uses a snapshot that is not clean fails once the snapshot's
    files are deleted, just as it fails once the segments are deleted. If a catalog does not answer, only this
    history is delayed: the objects are deleted nevertheless. Until the Iceberg table is updated, its readers fail,
    as they do after retention.

The erasure is not finished while any of the following is left; the report names them:
    * a snapshot that a tag or another branch keeps
    * a list or manifest that waits (step 3)
    * a manifest of another program with entries of deleted files and other entries
    * files that are not lists, manifests or metadata
    * metadata of another table in the same folder. That table may be in use, so only files that a snapshot of this
      table has named are deleted
    Until the erasure is finished, the table stays in the topic's configuration, so that it is not forgotten, and
    tiering stays enabled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.tiering.iceberg_files import TableFiles, comparable

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_AVRO, _METADATA, _HINT = ".avro", (".metadata.json", ".metadata.json.gz"), "version-hint.text"


class _NamedList(msgspec.Struct):
    manifest_list: str = msgspec.field(name="manifest-list", default="")


class _Former(msgspec.Struct):
    metadata_file: str = msgspec.field(name="metadata-file", default="")


class _Named(msgspec.Struct):
    table_uuid: str = msgspec.field(name="table-uuid", default="")
    metadata_log: tuple[_Former, ...] = msgspec.field(name="metadata-log", default=())
    snapshots: tuple[_NamedList, ...] = ()


Left = tuple[str, str]
"""A file or snapshot that is left and may have erased values, and the reason why it is left."""


@dataclass(frozen=True, slots=True)
class IcebergHistory:
    """A table after its history was deleted."""

    files: int
    """The number of the table's own files that were deleted."""
    sequence_number: int
    """The least sequence number of the snapshots that are left; 0 if none is left."""
    left: tuple[Left, ...]
    waiting: tuple[str, ...]
    """The lists and manifests that are left because they are too new (step 3)."""
    overtaken: bool
    """Whether the current snapshot is not clean: the Delta table has changed meanwhile, or another program has
    changed the snapshot's manifests."""


@dataclass(frozen=True, slots=True)
class IcebergContents:
    """The segments that the metadata of a table name, and the table's own files."""

    files: int
    """The number of lists, manifests and metadata files."""
    sequence_number: int
    """The least sequence number of a snapshot; 0 without a snapshot."""
    segments: frozenset[tuple[str, int]]
    """The address and number of rows of each data file that an entry names, including entries of deleted files."""
    unknown: tuple[Left, ...]
    """Files that may have erased values, because it is unknown what they contain; each with the reason."""


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
    unknown = [(file, why) for file in unnamed(table, files, named_by(table))] + unknown_files(table, files)
    unknown += MetadataFiles.read(table, own, files).left
    return IcebergContents(len(files), least_number(table), frozenset(segments), tuple(unknown))


def least_number(table: Table) -> int:
    """The least sequence number of a table's snapshots; 0 without a snapshot."""
    return min((snapshot.sequence_number or 0 for snapshot in table.snapshots()), default=0)


def unclean_snapshots(table: Table, listed: Collection[str], snapshots: Iterable[Snapshot]) -> set[int]:
    """The ids of snapshots that have a missing file, or an entry for an address that is not in ``listed``. Each
    manifest is read once."""
    clean: dict[str, bool] = {}

    def is_clean(manifest: ManifestFile) -> bool:
        if manifest.manifest_path not in clean:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            clean[manifest.manifest_path] = all(entry.data_file.file_path in listed for entry in entries)
        return clean[manifest.manifest_path]

    found = set()
    for snapshot in snapshots:
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


def unnamed(table: Table, files: Iterable[str], named: Collection[str]) -> list[str]:
    """The lists and manifests among a table's files that no snapshot names."""
    return sorted(file for file in files if _is_own(table, file) and file.endswith(_AVRO) and file not in named)


def in_flight(
    table: Table, own: TableFiles, files: Mapping[str, str], metadata: MetadataFiles, settled_ms: int | None
) -> list[str]:
    """The lists and manifests of a walk that a job may be about to commit: no metadata file has named them yet,
    and they were written after ``settled_ms``, or at an unknown time. If ``settled_ms`` is None, there are none.
    Raises: see ``TableFiles.modified_ms``."""
    if settled_ms is None:
        return []
    found = []
    for name in unnamed(table, files, named_by(table) | metadata.named):
        with suppress(FileNotFoundError):
            modified_ms = own.modified_ms(files[name])
            if modified_ms is None or modified_ms > settled_ms:
                found.append(name)
    return found


def unknown_files(table: Table, files: Iterable[str]) -> list[Left]:
    """The files that are outside of the folder of the current metadata, or that are not lists, manifests or
    metadata."""
    why = "it is not a file of the table's metadata, so its content is unknown: remove it by hand"
    known = (_AVRO, *_METADATA, _HINT)
    return [(file, why) for file in sorted(files) if not _is_own(table, file) or not file.endswith(known)]


def _is_own(table: Table, file: str) -> bool:
    return file.rpartition("/")[0] == comparable(table.metadata_location).rpartition("/")[0]


@dataclass(slots=True)
class MetadataFiles:
    """The metadata files of a walk, except the current one."""

    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The manifest lists that each metadata file names."""
    left: list[Left] = field(default_factory=list)
    """The metadata files that cannot be read, or that have snapshots of another table. The other table may be in
    use, so its files are not deleted here."""
    of_others: bool = False
    """Whether any metadata file belongs to another table."""
    pending: set[str] = field(default_factory=set)
    """The metadata files that build on the current one. A job may be about to make one of them current."""

    @classmethod
    def read(cls, table: Table, own: TableFiles, files: Mapping[str, str]) -> MetadataFiles:
        """Read all metadata files of a walk. Raises: CorruptionError for a file that is too large."""
        found, present_name = cls(), comparable(table.metadata_location)
        former = {comparable(one.metadata_file) for one in table.metadata.metadata_log}
        for name, address in sorted(files.items()):
            if name == present_name or not _is_own(table, name) or not name.endswith(_METADATA):
                continue
            try:
                metadata = parse_json(own.read_metadata(address), _Named)
            except FileNotFoundError:
                continue
            except ValueError as error:
                found.left.append((name, f"it is not metadata of a table ({error}): remove it by hand"))
                continue
            if metadata.table_uuid != str(table.metadata.table_uuid) and metadata.snapshots:
                found.of_others = True
                found.left.append(
                    (
                        name,
                        "it belongs to another table in this folder: if that table was dropped, remove the file",
                    )
                )
            else:
                found.lists[name] = tuple(comparable(one.manifest_list) for one in metadata.snapshots)
                builds_on = [comparable(one.metadata_file) for one in metadata.metadata_log[-1:]]
                if builds_on == [present_name] and name not in former:
                    found.pending.add(name)
        return found

    @property
    def named(self) -> set[str]:
        """The lists that all metadata files name, except the ``pending`` files."""
        return {one for name, lists in self.lists.items() if name not in self.pending for one in lists}

    def outdated(self, table: Table, later: Collection[str]) -> list[str]:
        """The metadata files that name a list which is neither in ``later`` nor named by the table. ``later`` must
        be a later walk, because a list is written before the metadata that name it."""
        there = set(later) | {comparable(snapshot.manifest_list) for snapshot in table.snapshots()}
        return [name for name, lists in self.lists.items() if not set(lists) <= there]
