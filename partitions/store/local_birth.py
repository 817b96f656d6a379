"""The creation time of a file, which ``os.stat`` does not return.

A copy that keeps owner, mode and mtime (``cp -a``, ``rsync -a``) often even gets the inode of the deleted
original. No program can set the time of birth, and neither a change of owner nor a hard link changes it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache

_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_MASK = struct.Struct("=I")
_BIRTH = struct.Struct("=qI")
"""The seconds and nanoseconds at ``_BIRTH_AT`` of ``struct statx`` (linux/stat.h)."""
_BIRTH_AT = 80

_Statx = Callable[[int, bytes, int, int, ctypes.Array[ctypes.c_char]], int]


def birth_of(name: str, folder: int) -> str:
    """The time of birth of a file in nanoseconds, as text; ``folder`` is a descriptor of its folder. Empty if the
    system or the file system does not report it, or the file does not exist.
    """
    statx = _statx()
    if statx is None:
        return ""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(folder, os.fsencode(name), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer) != 0:
        return ""
    (mask,) = _MASK.unpack_from(answer)
    if not mask & _STATX_BTIME:
        return ""
    seconds, nanoseconds = _BIRTH.unpack_from(answer, _BIRTH_AT)
    return f"{seconds * 1_000_000_000 + nanoseconds:x}"


@cache
def _statx() -> _Statx | None:
    """The function of the C library; None if the library lacks it."""
    try:
        function = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    function.restype = ctypes.c_int
    found: _Statx = function
    return found
