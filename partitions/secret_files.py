"""Reads files that should hold a secret. A caller may give the secret instead of a name; no error repeats it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def read_secret(
    what: str,
    path: str | Path,
    read: Callable[[Path], T],
    error: Callable[[str], Exception],
    *,
    not_text: str | None = None,
) -> T:
    """The content of a file, as ``read`` returns it. If ``read`` decodes text, ``not_text`` is the reason for
    bytes that it cannot decode. Raises: ``error`` of a message with ``what`` and the reason.
    """
    try:
        return read(Path(path))
    except UnicodeDecodeError:
        why = not_text
    except ValueError:
        why = "that is not a valid path"
    except OSError as refused:
        why = refused.strerror
    raise error(unreadable(what, path, why))


def unreadable(what: str, path: str | os.PathLike[str], why: str | None) -> str:
    """The message for a file ``what`` that cannot be read. Repeats ``path`` only if it, or its folder, exists."""
    folder = os.path.dirname(path)
    if os.path.lexists(path) or (folder and os.path.isdir(folder)):
        return f"{what}, {os.fspath(path)!r}, cannot be read: {why}"
    return f"{what} cannot be read: {why}; its name is not repeated here, because it may be the secret itself"
