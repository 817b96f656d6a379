"""Statements as a shell script for folders: access control lists for a group. Pure.

On a file system, the right to create files in a folder includes the right to delete them. If producers must not
delete, keep the roots in object storage.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stratalog.bridges.policy.role import Role
from stratalog.bridges.policy.statements import Resource, Statement
from stratalog.partitions import paths

_HEAD = """\
#!/bin/sh
# The minimal rights of a {role} of the cluster {cluster_id}, for a group. The owner of the folders runs this once:
#   GROUP=name sh {role}.sh
# New files inherit these rights. On a file system, the right to create files in a folder includes the right to
# delete them.
set -eu
: "${{GROUP:?name the group that gets the rights}}"
pass() {{ setfacl -m "g:$GROUP:rx" -- "$1"; }}   # through a folder, to its contents
give() {{ setfacl -R -m "g:$GROUP:$1,d:g:$GROUP:$1" -- "$2"; }}
"""


def posix_policy(role: Role, cluster_id: str, statements: Sequence[Statement]) -> str:
    """The script. It needs ``setfacl``, and a file system with access control lists."""
    passed: dict[str, None] = {}
    objects: dict[str, None] = {}
    folders: dict[str, str] = {}
    for statement in statements:
        writes = bool(statement.rights & {"create", "delete"})
        for place in statement.places:
            path, root = _path(place), _folder(place)
            above = paths.folder_of(path)
            while above.startswith(root):
                passed[above] = None
                above = paths.folder_of(above)
            if place.is_object:
                objects[path] = None
            elif writes or path not in folders:
                folders[path] = "rwX" if writes else "rX"
    lines = [
        f"mkdir -p -- {shlex.quote(folder)}" for folder in sorted(folders)
    ]  # the lists must exist before the first file
    lines += [f"pass {shlex.quote(folder)}" for folder in sorted(passed)]
    lines += [f'setfacl -m "g:$GROUP:r" -- {shlex.quote(path)}' for path in sorted(objects)]
    lines += [f"give {rights} {shlex.quote(folder)}" for folder, rights in sorted(folders.items())]
    return _HEAD.format(role=role, cluster_id=cluster_id) + "\n".join(lines) + "\n"


def _folder(place: Resource) -> str:
    return place.root.address.removeprefix("file://")


def _path(place: Resource) -> str:
    below = place.below_root()
    return f"{_folder(place)}/{below}" if below else _folder(place)
