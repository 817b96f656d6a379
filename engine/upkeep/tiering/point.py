"""Restore points: descriptions of the cluster in the remote tier, so that it can be restored from there alone.

A description is written before a tier run commits anything, so that every table belongs to a topic that is
described; and when nothing has changed since the last one, a run costs one listing. Descriptions are created
exclusively under ``<metadata offset>.<digest>`` and never changed: drivers that see the metadata at one offset
write the same bytes, the greatest offset counts, and one that a late driver writes counts for nothing. They
stand beside the tables, not in them: one object tells of all topics at one offset, also of those of which
nothing is tiered."""

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
"""The number of descriptions of a cluster that are kept."""


def describe_first(metadata: MetadataClient, storage: Storage, image: ClusterImage) -> list[Failure]:
    """Before anything is committed to a table, write the cluster's description where it says something new. That
    it cannot be written is a failure, and keeps nothing from being tiered.
    """
    remote = storage.remote_store("restore points are kept in the remote tier")
    try:
        if metadata.lacks_key:
            raise ClusterKeyError(
                f"cluster {image.cluster_id!r} is signed, and this process does not have its key: a restore point "
                "of it would not be believed; set STRATALOG_CLUSTER_KEY, or give the job --cluster-key-file"
            )
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
    """Write a description as of a metadata offset, signed with ``key``, unless the latest one is as new, or says
    the same. ``committed`` reads how far the metadata go now; without it they go no further than ``offset``.

    Raises: CorruptionError for one above it that is of metadata which nobody has committed, UnsignedError for one
        without the key's tag; the new one is written all the same.
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
    """Whether the latest description may be that of a driver which sees more of the metadata, up to ``committed``
    now: it was listed before that was read.

    Raises: CorruptionError, UnsignedError.
    """
    if key is not None:
        _read(remote, cluster_id, *latest, key)
    if latest[0] > committed:
        what = remote.uri_of(paths.description_path(cluster_id, *latest))
        raise CorruptionError(
            f"{what} is of metadata offset {latest[0]}, and {committed} is the end of all that was committed: "
            "the metadata were put back to an older state, or stratalog did not write it; delete it, or a restore "
            "takes it for the latest"
        )


def _signed(description: ClusterDescription, offset: int, key: ClusterKey | None) -> bytes:
    return signed_json(key, _KIND, str(offset), encode(description))


def read_description(remote: Store, cluster_id: str, key: ClusterKey | None = None) -> ClusterDescription:
    """The latest description of a cluster. With ``key``, which is that cluster's, it has to be signed.

    Raises: InvalidCallError for a cluster without a description, naming the clusters that have one;
        CorruptionError when it is damaged, UnsignedError; StorageError kinds.
    """
    present = _listed(remote, cluster_id)
    if not present:
        known = sorted({stored.name.split("/")[1] for stored in remote.list(paths.DESCRIPTIONS)})
        there = f"it describes {', '.join(known)}" if known else "it describes no cluster"
        raise InvalidCallError(
            f"{remote.uri} has no description of cluster {cluster_id!r}: {there}. Tier runs write them"
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
        raise SourceChangedError(f"{what} was superseded meanwhile; try again") from error
    body = unsigned_json(key, _KIND, str(offset), data, what)
    found = decode(body, what)
    if digest(data) != expected or found.cluster_id != cluster_id:
        raise CorruptionError(
            f"{what} is damaged, or was put there by somebody else: its name does not fit what it says; without "
            "it the one before counts"
        )
    return found


def _listed(remote: Store, cluster_id: str) -> list[tuple[int, str]]:
    """Offset and digest of each description, in order."""
    folder = paths.descriptions_path(cluster_id)
    names = (paths.name_in(folder, stored.name) for stored in remote.list(folder))
    return sorted(parsed for name in names if (parsed := paths.parse_description(name)) is not None)
