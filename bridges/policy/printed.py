"""The text of a policy for a role and topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratalog.bridges.policy.aws import aws_policy
from stratalog.bridges.policy.azure import azure_policy
from stratalog.bridges.policy.gcs import gcs_policy
from stratalog.bridges.policy.layout import layout_of
from stratalog.bridges.policy.posix import posix_policy
from stratalog.bridges.policy.role import SCHEMES, Role, kind_of
from stratalog.bridges.policy.statements import Statement, statements
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import InvalidCallError


def policy(metadata: MetadataClient, storage: Storage, role: str, topics: Sequence[str] | None, kind: str) -> str:
    """The minimal policy of a role on the topics (None: all, including future ones), for the roots of the cluster
    on that ``kind`` of storage, one of ``SCHEMES``. See ``stratalog.bridges.policy.statements``.

    Raises: InvalidCallError for an unknown role or kind, or if the cluster has no root on that kind of storage;
        UnknownTopicOrPartitionError, InvalidTopicError.
    """
    if role not in tuple(Role):
        raise InvalidCallError(f"role {role!r}: use one of {', '.join(Role)}")
    if kind not in SCHEMES:
        near = f", not a scheme: {kind_of(kind)}" if kind_of(kind) in SCHEMES else ""
        raise InvalidCallError(f"storage {kind!r}: use one of {', '.join(SCHEMES)}{near}")
    layout = layout_of(storage.file, metadata.image(), topics)
    there = _of(statements(Role(role), layout), SCHEMES[kind])
    if not there:
        has = sorted({kind_of(address.partition("://")[0]) for address in storage.file.roots})
        raise InvalidCallError(f"no root of the cluster is on {kind}: they are on {', '.join(has)}")
    match kind:
        case "aws":
            return aws_policy(there)
        case "azure":
            return azure_policy(Role(role), layout.cluster_id, there)
        case "gcs":
            return gcs_policy(there)
        case _:
            return posix_policy(Role(role), layout.cluster_id, there)


def _of(given: Sequence[Statement], schemes: Sequence[str]) -> tuple[Statement, ...]:
    """The statements on roots with these schemes."""
    kept = (
        replace(each, places=tuple(p for p in each.places if p.root.address.partition("://")[0] in schemes))
        for each in given
    )
    return tuple(statement for statement in kept if statement.places)
