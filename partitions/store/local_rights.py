"""Refusals of a file system, told apart: a fault, a missing right of the caller, a root that takes no
writes."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from stratalog.partitions.errors import (
    CorruptionError,
    Right,
    StorageAuthorizationError,
    StorageError,
)
from stratalog.partitions.store.local_folder import SpecialFileError
from stratalog.partitions.unwritable import UnwritableStorageError

NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM})

_RIGHTS: Mapping[str, Right] = {
    **dict.fromkeys(("read", "open", "look for"), "read"),
    "list": "list",
    **dict.fromkeys(("delete", "sweep"), "delete"),
}
"""The right that an action needs, by action; any other needs the right to create."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDIES: Mapping[int, str] = {
    errno.EROFS: "Remount it read-write",
    errno.ENOSPC: "Free or add space there",
    errno.EDQUOT: "Raise the quota, or free space there",
    errno.EIO: "Read the system's log about this device, and replace it if it fails",
}
"""By the number of the system's error: what a person can do about storage that takes no writes."""
_TWO_DEVICES = frozenset({"copy to"})
"""Actions that read one device and write another: EIO does not say which of them fails."""


def failure_of(action: str, path: str, error: OSError) -> StorageError | CorruptionError:
    """The error for what the system did not do. A thing of another kind that is in the way does not go away by
    itself, and its error is not one to wait for."""
    what = f"cannot {action} {path!r}: {error.strerror}"
    if isinstance(error, SpecialFileError | NotADirectoryError | IsADirectoryError):
        return CorruptionError(what)
    return refusal(action, path, what, error.errno)


def refusal(action: str, path: str, what: str, number: int | None) -> StorageError:
    """The error of an action that the system has refused with this ``errno``, in the words ``what``."""
    right = _RIGHTS.get(action, "create")
    if number in NOT_ALLOWED:
        let = f"let the user that runs this {right} there, or run it as another one"
        return StorageAuthorizationError(f"{what}: {let}", right, path)
    if number is None or number not in _REMEDIES:
        return StorageError(what)
    told = f"{what}. {_REMEDIES[number]}"
    if right in ("read", "list") or (number == errno.EIO and action in _TWO_DEVICES):
        return StorageError(told)
    return UnwritableStorageError(told, path, full=number in _FULL)
