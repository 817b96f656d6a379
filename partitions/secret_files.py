"""How errors name files that should hold a secret: a caller may give the secret itself instead of a name."""

from __future__ import annotations

import os


def unreadable(what: str, path: str | os.PathLike[str], why: str | None) -> str:
    """The message for a file ``what`` that cannot be read. It repeats ``path`` only if there is such a file."""
    if os.path.lexists(path):
        return f"{what}, {os.fspath(path)!r}, cannot be read: {why}"
    return f"{what} cannot be read: {why}; its name is not repeated here, because it may be the secret itself"
