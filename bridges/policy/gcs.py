"""Statements for Google: bindings of a bucket's policy, with conditions on objects. Pure. Listing is on the whole
bucket. A condition can test the beginning of a name, without wildcards, so the folders are those of the current
incarnations. Print the policy again after a broker has been formatted again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stratalog.bridges.policy.statements import Resource, Statement
from stratalog.partitions.errors import Right

MEMBER = "MEMBER"
"""The placeholder for the member that gets the permissions."""
MOST_OPERANDS = 12
"""Google's limit of logical operators in a condition."""

_ROLES: Mapping[Right, str] = {
    "read": "roles/storage.objectViewer",
    "create": "roles/storage.objectCreator",
    "delete": "roles/storage.objectUser",
}


def gcs_policy(statements: Sequence[Statement]) -> str:
    """A JSON document with the bindings of each bucket, for ``gcloud storage buckets set-iam-policy``."""
    buckets = dict.fromkeys(_bucket(place) for statement in statements for place in statement.places)
    found = {bucket: {"version": 3, "bindings": _bindings(bucket, statements)} for bucket in buckets}
    return json.dumps(found, indent=2) + "\n"


def _bindings(bucket: str, statements: Sequence[Statement]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "roles/storage.legacyBucketReader", "members": [MEMBER]}]
    for statement in statements:
        tests = [_test(place) for place in statement.places if _bucket(place) == bucket]
        for right, role in _ROLES.items():
            if right not in statement.rights:
                continue
            for start in range(0, len(tests), MOST_OPERANDS):
                expression = " || ".join(tests[start : start + MOST_OPERANDS])
                title = f"{statement.name} {right} {start // MOST_OPERANDS + 1}"
                condition = {"title": title, "expression": expression}
                found.append({"role": role, "members": [MEMBER], "condition": condition})
    return found


def _bucket(place: Resource) -> str:
    return place.root.address.partition("://")[2].partition("/")[0]


def _test(place: Resource) -> str:
    inside = place.root.address.partition("://")[2].partition("/")[2]
    name = "/".join(filter(None, (inside, place.below_root())))
    of = f"projects/_/buckets/{_bucket(place)}/objects/"
    if place.is_object:
        return f'resource.name == "{of}{name}"'
    return f'resource.name.startsWith("{of}{name}{"/" if name else ""}")'
