"""Classifies refusals of a file system: a fault, a permission that the caller lacks, or a root that refuses
writes.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from stratalog.partitions.errors import CorruptionError, Right, StorageAuthorizationError, StorageError
from stratalog.partitions.store.local_folder import SpecialFileError
from stratalog.partitions.unwritable import UnwritableStorageError

NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM})

_RIGHTS: Mapping[str, Right] = {
    **dict.fromkeys(("read", "open", "look for"), "read"),
    "list": "list",
    **dict.fromkeys(("delete", "sweep"), "delete"),
}
"""The required permission by action; all other actions need the permission to create."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDIES: Mapping[int, str] = {
    errno.EROFS: "Remount it read-write",
    errno.ENOSPC: "Free or add space there",
    errno.EDQUOT: "Raise the quota, or free space there",
    errno.EIO: "Read the system's log about this device, and replace it if it fails",
}
"""The remedy for storage that refuses writes, by error number."""
_TWO_DEVICES = frozenset({"copy to"})
"""Actions that read one device and write another: EIO does not show which one fails."""


def failure_of(action: str, path: str, error: OSError) -> StorageError | CorruptionError:
    """The error for a failed system call. An object of a wrong kind does not disappear by itself, so its error is
    not retriable.
    """
    what = f"cannot {action} {path!r}: {error.strerror}"
    if isinstance(error, SpecialFileError | NotADirectoryError | IsADirectoryError):
        return CorruptionError(what)
    return refusal(action, path, what, error.errno)


def refusal(action: str, path: str, what: str, number: int | None) -> StorageError:
    """The error of an action that the system refused with this ``errno``; ``what`` is the message."""
    right = _RIGHTS.get(action, "create")
    if number in NOT_ALLOWED:
        let = f"give this user the right to {right} there, or run the job as another user"
        return StorageAuthorizationError(f"{what}: {let}", right, path)
    if number is None or number not in _REMEDIES:
        return StorageError(what)
    message = f"{what}. {_REMEDIES[number]}"
    if right in ("read", "list") or (number == errno.EIO and action in _TWO_DEVICES):
        return StorageError(message)
    return UnwritableStorageError(message, path, full=number in _FULL)
