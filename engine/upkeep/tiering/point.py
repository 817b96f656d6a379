"""Restore points: descriptions of the cluster in the remote tier. With them, the cluster can be restored from the
remote tier alone.

A description is written before a tier run commits anything, so every table belongs to a described topic. If
nothing has changed since the last description, the check costs one listing. Descriptions are created exclusively
under ``<metadata offset>.<digest>``, and are never changed. Drivers that see the metadata at the same offset write
the same bytes. A restore uses the description with the greatest offset, so a late driver's description has no
effect. Descriptions are not part of the tables: one object describes all topics at one offset, including topics
without tiered records.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.description import MOST_BYTES, ClusterDescription, decode, describe, digest, encode
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.cluster_key import ClusterKey, signed_json, unsigned_json
from stratalog.partitions.errors import (
    ClusterKeyError,
    CorruptionError,
    InvalidCallError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.store import Store

_KIND = "description"

KEPT = 3


def describe_first(
    metadata: MetadataClient, storage: Storage, image: ClusterImage, *, dry_run: bool = False
) -> list[Failure]:
    """Write the cluster's description if it has changed; called before anything is committed to a table. If the
    write fails, the report has a failure, but tiering continues. A dry run only checks that this process has the
    key.
    """
    remote = storage.remote_store("restore points are kept in the remote tier")
    try:
        if metadata.lacks_key:
            raise ClusterKeyError(
                f"cluster {image.cluster_id!r} is signed, but this process does not have its key: a restore "
                "would refuse the restore point; set STRATALOG_CLUSTER_KEY, or use "
                "--cluster-key-file"
            )
        if dry_run:
            return []
        write_description(
            remote, describe(image), image.next_offset, storage.key, lambda: metadata.image().next_offset
        )
    except StratalogError as error:
        return [Failure.of("restore point", error)]
    return []


def write_description(
    remote: Store,
    description: ClusterDescription,
    offset: int,
    key: ClusterKey | None = None,
    committed: Callable[[], int] | None = None,
) -> bool:
    """Write the description at a metadata offset, signed with ``key``, unless the latest description is at least
    as new, or equal. ``committed`` reads the current end of the metadata; without it, the end is ``offset``.

    Raises: CorruptionError if a later description describes metadata that was never committed, UnsignedError if a
    later description lacks the key's tag. In both cases the new description is written nevertheless.
    """
    cluster_id = description.cluster_id
    present, strange = _listed(remote, cluster_id), None
    if present and present[-1][0] > offset:
        try:
            _check_ours(remote, cluster_id, present[-1], offset if committed is None else committed(), key)
        except CorruptionError as error:
            present, strange = [one for one in present if one[0] <= offset], error
    known = bool(present) and (
        present[-1][0] >= offset or present[-1][1] == digest(_signed(description, present[-1][0], key))
    )
    if not known:
        data = _signed(description, offset, key)
        remote.create(paths.description_path(cluster_id, offset, digest(data)), data)
        superseded = [paths.description_path(cluster_id, *one) for one in present[: 1 - KEPT]]
        if superseded:
            remote.delete(superseded)
    if strange is not None:
        raise strange
    return not known


def _check_ours(
    remote: Store, cluster_id: str, latest: tuple[int, str], committed: int, key: ClusterKey | None
) -> None:
    """Check that the latest description can come from a driver that has read a later state of the metadata. The
    description was listed before ``committed`` was read.

    Raises: CorruptionError, UnsignedError.
    """
    if key is not None:
        _read(remote, cluster_id, *latest, key)
    if latest[0] > committed:
        what = remote.uri_of(paths.description_path(cluster_id, *latest))
        raise CorruptionError(
            f"{what} has metadata offset {latest[0]}, but the metadata ends at {committed}: either "
            "the metadata was restored to an older state, or stratalog did not write this file. "
            "Delete this file; otherwise a restore uses it as the latest description of the "
            "cluster"
        )


def _signed(description: ClusterDescription, offset: int, key: ClusterKey | None) -> bytes:
    return signed_json(key, _KIND, str(offset), encode(description))


def read_description(remote: Store, cluster_id: str, key: ClusterKey | None = None) -> ClusterDescription:
    """The latest description of a cluster. With ``key``, the cluster's key, the description must be signed.

    Raises: InvalidCallError for a cluster without a description, with the names of the clusters that have one;
    CorruptionError when the description is damaged, UnsignedError; StorageError kinds.
    """
    present = _listed(remote, cluster_id)
    if not present:
        known = sorted({stored.name.split("/")[1] for stored in remote.list(paths.DESCRIPTIONS)})
        there = f"it has restore points of {', '.join(known)}" if known else "it has none"
        raise InvalidCallError(
            f"{remote.uri} has no restore point of cluster {cluster_id!r}: {there}. The job tier "
            "writes restore points"
        )
    return _read(remote, cluster_id, *present[-1], key)


def _read(
    remote: Store, cluster_id: str, offset: int, expected: str, key: ClusterKey | None
) -> ClusterDescription:
    name = paths.description_path(cluster_id, offset, expected)
    what = remote.uri_of(name)
    try:
        data = read_bounded(remote, name, MOST_BYTES)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was superseded in the meantime; try again") from error
    body = unsigned_json(key, _KIND, str(offset), data, what)
    found = decode(body, what)
    if digest(data) != expected or found.cluster_id != cluster_id:
        raise CorruptionError(
            f"{what} is damaged, or stratalog did not write it: its name does not match its "
            "content. Delete this file, so that the previous restore point is used"
        )
    return found


def _listed(remote: Store, cluster_id: str) -> list[tuple[int, str]]:
    """The offset and digest of each description, in ascending order."""
    folder = paths.descriptions_path(cluster_id)
    names = (paths.name_in(folder, stored.name) for stored in remote.list(folder))
    return sorted(parsed for name in names if (parsed := paths.parse_description(name)) is not None)
