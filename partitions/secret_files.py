"""How errors name files that should hold a secret: a caller may give the secret itself instead of a name."""

from __future__ import annotations

import os


def unreadable(what: str, path: str | os.PathLike[str], why: str | None) -> str:
    """The message for a file ``what`` that cannot be read. Repeats ``path`` only if it, or its folder, exists."""
    folder = os.path.dirname(path)
    if os.path.lexists(path) or (folder and os.path.isdir(folder)):
        return f"{what}, {os.fspath(path)!r}, cannot be read: {why}"
    return f"{what} cannot be read: {why}; its name is not repeated here, because it may be the secret itself"
