"""File systems for a test, if the machine allows the test to mount any: read-only ones, full ones."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[None]:
    """A file system of this size on a folder during the block; the test is skipped if it cannot be mounted."""
    if _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)) != 0:
        pytest.skip("this machine lets nobody here mount a file system")
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def remount(folder: Path, mode: str) -> None:
    """Make the file system read-only (``ro``), or writable again (``rw``)."""
    assert _run("mount", "-o", f"remount,{mode}", str(folder)) == 0


def fill_up(folder: Path) -> Path:
    """Fill the file system; yields the file that takes all space."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return ballast


def _run(*command: str) -> int:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return 1
