"""Statements for Azure: a role with data actions, and its assignments on containers, with conditions (ABAC) on
paths. Pure.

Listing is on the whole container. A role without the action to delete may still overwrite: Azure has only one
action, ``write``, to create and to overwrite. Versions of the container, or immutability policies, protect against
that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from stratalog.bridges.policy.role import Role
from stratalog.bridges.policy.statements import Resource, Statement
from stratalog.partitions.errors import Right

_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_ACTIONS: Mapping[Right, tuple[str, ...]] = {
    "read": (f"{_BLOBS}/read",),
    "create": (f"{_BLOBS}/add/action", f"{_BLOBS}/write"),
    "delete": (f"{_BLOBS}/delete",),
}
_SAS: Mapping[Right, str] = {"read": "r", "create": "cw", "delete": "d", "list": "l"}


def azure_policy(role: Role, cluster_id: str, statements: Sequence[Statement]) -> str:
    """A JSON document: ``roleDefinition`` (of ``az role definition create``), ``assignments`` by container
    (``--condition``, of ``az role assignment create``), and the permissions of a SAS for a whole container as an
    alternative.
    """
    rights = {right for statement in statements for right in statement.rights}
    containers = dict.fromkeys(_container(place) for statement in statements for place in statement.places)
    return (
        json.dumps(
            {
                "roleDefinition": {
                    "Name": f"stratalog {role} of {cluster_id}",
                    "Description": f"The minimal rights of a {role} of the cluster {cluster_id}",
                    "Actions": [],
                    "DataActions": [action for right in _ACTIONS if right in rights for action in _ACTIONS[right]],
                    "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
                },
                "assignments": [
                    {
                        "account": account,
                        "container": container,
                        "conditionVersion": "2.0",
                        "condition": _condition(
                            [
                                (statement.rights, place)
                                for statement in statements
                                for place in statement.places
                                if _container(place) == (account, container)
                            ]
                        ),
                        "sasPermissions": "".join(letter for letter in "racwdl" if letter in _letters(rights)),
                    }
                    for account, container in containers
                ],
            },
            indent=2,
        )
        + "\n"
    )


def _letters(rights: Iterable[Right]) -> str:
    return "".join(_SAS[right] for right in rights)


def _condition(given: Sequence[tuple[frozenset[Right], Resource]]) -> str:
    """The condition of a permission: the action is a different one, or the path is one of these."""
    clauses = []
    for right, actions in _ACTIONS.items():
        patterns = list(dict.fromkeys(_pattern(place) for rights, place in given if right in rights))
        but = " AND NOT SubOperationMatches{'Blob.List'}" if right == "read" else ""
        asked = " OR ".join(f"ActionMatches{{'{action}'}}{but}" for action in actions)
        allowed = " OR ".join(f"@Resource[{_BLOBS}:path] StringLike '{pattern}'" for pattern in patterns)
        clauses.append(f"(!({asked}){f' OR {allowed}' if allowed else ''})")
    return " AND ".join(clauses)


def _pattern(place: Resource) -> str:
    """The path in the container."""
    inside = place.root.address.partition("://")[2].partition("/")[2]
    path = "/".join(filter(None, (inside, place.below_root("*"))))
    return path if place.is_object else f"{path}/*" if path else "*"


def _container(place: Resource) -> tuple[str, str]:
    """The account (empty: the environment names it) and the container of ``az://`` and ``abfss://``."""
    first = place.root.address.partition("://")[2].partition("/")[0]
    container, _, host = first.partition("@")
    return host.partition(".")[0] or place.root.options.account or "", container
