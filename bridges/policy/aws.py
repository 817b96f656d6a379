"""Statements as a policy of S3: for a user or a role, or (with a ``Principal``) for a bucket. Pure.

``s3:ListBucket`` is on the whole bucket. With a condition on the prefix, S3 would answer 403 instead of 404 for a
missing object, and a reader could not distinguish a merged file from a missing permission.

On Amazon, a role without the permission to delete cannot overwrite either, because creates must have
``If-None-Match``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stratalog.bridges.policy.statements import Resource, Statement
from stratalog.partitions.errors import Right

_ACTIONS: Mapping[Right, tuple[str, ...]] = {
    "read": ("s3:GetObject",),
    "create": ("s3:PutObject", "s3:AbortMultipartUpload"),
    "delete": ("s3:DeleteObject",),
}
_EXCLUSIVELY = {"Null": {"s3:if-none-match": "false"}}
_IN_PARTS = {"Bool": {"s3:ObjectCreationOperation": "false"}}
"""Requests that do not create a name yet: the parts of an upload."""


def aws_policy(statements: Sequence[Statement]) -> str:
    """The policy, in JSON. Statements have their names as ``Sid``."""
    given: list[dict[str, Any]] = []
    deletes = any("delete" in statement.rights for statement in statements)
    buckets = sorted({_arn(place).partition("/")[0] for each in statements for place in each.places})
    if buckets:
        more = ["s3:ListBucketMultipartUploads"] if deletes else []
        given.append(_allow("List", ["s3:ListBucket", *more], buckets))
    for statement in statements:
        given += _objects(statement, deletes)
    given += _keys(statements)
    return json.dumps({"Version": "2012-10-17", "Statement": given}, indent=2) + "\n"


def _objects(statement: Statement, deletes: bool) -> list[dict[str, Any]]:
    actions = [action for right in _ACTIONS if right in statement.rights for action in _ACTIONS[right]]
    amazon = [place for place in statement.places if place.root.options.endpoint_url is None]
    if "create" not in statement.rights or deletes or not amazon:
        return [_allow(statement.name, actions, map(_arn, statement.places))]
    others = [place for place in statement.places if place not in amazon]
    besides = [action for action in actions if action != "s3:PutObject"]
    found = [
        _allow(statement.name, ["s3:PutObject"], map(_arn, amazon), _EXCLUSIVELY),
        _allow(f"{statement.name}InParts", ["s3:PutObject"], map(_arn, amazon), _IN_PARTS),
        _allow(f"{statement.name}Besides", besides, map(_arn, amazon)),
    ]
    return [*found, _allow(f"{statement.name}Elsewhere", actions, map(_arn, others))] if others else found


def _keys(statements: Sequence[Statement]) -> list[dict[str, Any]]:
    """The permissions on a key: readers decrypt; writers encrypt, and also decrypt, because uploads in parts
    do.
    """
    keys: dict[str, set[str]] = {}
    for statement in statements:
        actions = {"kms:Decrypt"} | ({"kms:GenerateDataKey"} if "create" in statement.rights else set())
        for place in statement.places:
            if (key := place.root.options.kms_key_id) is not None:
                keys.setdefault(key, set()).update(actions)
    found = []
    for number, (key, actions) in enumerate(sorted(keys.items()), start=1):
        alias = key.rpartition(":")[2] if key.rpartition(":")[2].startswith("alias/") else None
        resource = key if key.startswith("arn:") else f"arn:aws:kms:*:*:key/{key}"
        condition = None if alias is None else {"ForAnyValue:StringEquals": {"kms:ResourceAliases": alias}}
        arn = resource if alias is None else "arn:aws:kms:*:*:key/*"
        found.append(_allow(f"UseKey{number}", sorted(actions), [arn], condition))
    return found


def _allow(
    name: str, actions: Sequence[str], resources: Iterable[str], condition: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}
    return statement if condition is None else {**statement, "Condition": condition}


def _arn(place: Resource) -> str:
    key = "/".join(filter(None, (place.root.address.partition("://")[2], place.below_root("*"))))
    return f"arn:aws:s3:::{key}" if place.is_object else f"arn:aws:s3:::{key}/*"
