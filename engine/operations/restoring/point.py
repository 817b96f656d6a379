"""Restore points: descriptions of the cluster in the remote tier, so that it can be restored from there alone.

A description is written before a tier run commits anything, so that every table belongs to a topic that is
described; and when nothing has changed since the last one, a run costs one listing. Descriptions are created
exclusively under ``<metadata offset>.<digest>`` and never changed: drivers that see the metadata at one offset
write the same bytes, the greatest offset counts, and one that a late driver writes counts for nothing. They
stand beside the tables, not in them: one object tells of all topics at one offset, also of those of which
nothing is tiered."""

from __future__ import annotations

from engine.context import Context
from engine.metadata.description import ClusterDescription, decode, describe, digest, encode
from engine.metadata.image import ClusterImage
from engine.report import Failure
from partitions import paths
from partitions.errors import CorruptionError, InvalidCallError, SourceChangedError, StratalogError
from partitions.store import Store

KEPT = 3
"""So many descriptions of a cluster are kept."""


def describe_first(context: Context, image: ClusterImage) -> list[Failure]:
    """Before anything is committed to a table, write the cluster's description where it says something new. That
    it cannot be written is a failure, and keeps nothing from being tiered.
    """
    remote = context.remote_store("restore points are kept in the remote tier")
    try:
        write_description(remote, describe(image), image.next_offset)
    except StratalogError as error:
        return [Failure.of("restore point", error)]
    return []


def write_description(remote: Store, description: ClusterDescription, offset: int) -> bool:
    """Write a description as of a metadata offset, unless the latest one is as new, or says the same."""
    data = encode(description)
    present = _listed(remote, description.cluster_id)
    if present and (present[-1][0] >= offset or present[-1][1] == digest(data)):
        return False
    remote.create(paths.description_path(description.cluster_id, offset, digest(data)), data)
    superseded = [paths.description_path(description.cluster_id, *one) for one in present[: 1 - KEPT]]
    if superseded:
        remote.delete(superseded)
    return True


def read_description(remote: Store, cluster_id: str) -> ClusterDescription:
    """The latest description of a cluster.

    Raises: InvalidCallError when there is none, naming the clusters that have one; CorruptionError when it is
        damaged; StorageError kinds.
    """
    present = _listed(remote, cluster_id)
    if not present:
        known = sorted({stored.name.split("/")[1] for stored in remote.list(paths.DESCRIPTIONS)})
        there = f"it describes {', '.join(known)}" if known else "it describes no cluster"
        raise InvalidCallError(
            f"{remote.uri} has no description of cluster {cluster_id!r}: {there}. Tier runs write them"
        )
    name = paths.description_path(cluster_id, *present[-1])
    try:
        data = remote.read(name)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{remote.uri_of(name)} was superseded meanwhile; try again") from error
    return _checked(decode(data, remote.uri_of(name)), cluster_id, remote.uri_of(name), data, present[-1][1])


def _checked(
    found: ClusterDescription, cluster_id: str, what: str, data: bytes, expected: str
) -> ClusterDescription:
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
