"""Refusals of a file system, told apart: a fault, or a missing right of the caller."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from stratalog.partitions.errors import CorruptionError, Right, StorageAuthorizationError, StorageError
from stratalog.partitions.store.local_folder import SpecialFileError

NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_RIGHTS: Mapping[str, Right] = {
    **dict.fromkeys(("read", "open", "look for"), "read"),
    "list": "list",
    **dict.fromkeys(("delete", "sweep"), "delete"),
}
"""The right that an action needs, by action; any other needs the right to create."""


def failure_of(action: str, path: str, error: OSError) -> StorageError | CorruptionError:
    """The error for what the system did not do. A thing of another kind that is in the way does not go away by
    itself, and its error is not one to wait for."""
    what = f"cannot {action} {path!r}: {error.strerror}"
    if isinstance(error, SpecialFileError | NotADirectoryError | IsADirectoryError):
        return CorruptionError(what)
    if error.errno not in NOT_ALLOWED:
        return StorageError(what)
    return not_allowed(_RIGHTS.get(action, "create"), path, what)


def not_allowed(right: Right, path: str, what: str) -> StorageAuthorizationError:
    """The error of a caller who lacks a right; ``what`` failed for it."""
    return StorageAuthorizationError(
        f"{what}: let the user that runs this {right} there, or run it as another one", right, path
    )
