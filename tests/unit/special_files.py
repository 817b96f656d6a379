"""Special files in place of a root's files or folders, for tests that their targets stay untouched."""

from __future__ import annotations

import os
import socket
from pathlib import Path

FILES = ["link", "dangling link", "link to itself", "FIFO", "socket"]
"""The kinds of replacements for a file."""


def put(kind: str, path: Path, victim: Path) -> Path:
    """Put a special file of that kind at ``path``; links lead to ``victim``. Returns the new place of the
    original, beside the victim."""
    aside = victim.with_name(f"aside-{path.name}")
    if os.path.lexists(path):
        path.rename(aside)
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(victim)
        case "dangling link":
            path.symlink_to(victim / "nowhere")
        case "link to itself":
            path.symlink_to(path)
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            # The address of a socket has a maximum length, so the function enters the folder.
            here = os.open(".", os.O_RDONLY)
            try:
                os.chdir(path.parent)
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(path.name)
            finally:
                os.fchdir(here)
                os.close(here)
        case _:
            raise AssertionError(kind)
    return aside


def contents(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: the content of its files, and the targets of its links."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        )
        for path in folder.rglob("*")
    }
