"""Fresh copies of the cluster's folder, and the files outside its roots that must never change.

A copy consists of hard links, because the engine writes files once and names them by linking. So a copy costs no
bytes, files keep their inodes and times, which identify a root, and a write into a file is detected in the
original.

    above.txt               a file above the cluster's folder
    scratch/                files for decoders that read only files
    original/               the cluster as it was built
    now/                    the copy that is mutated and worked on, always under this name
        b1/ b2/ b3/ remote/ cluster.toml plan.json
        beside.txt          a file beside the roots
        victim/             the target of links: it is old, and looks like litter and like a replica
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.fuzz.original import Original, build
from tests.fuzz.paths import ROOTS, files_below

_OLD_S = 30 * 24 * 60 * 60
Seen = tuple[str, int, int, int]
"""Path, inode, size and mtime."""


class Tree:
    """A folder with the original and the copy."""

    def __init__(self, folder: Path, key: str | None = None) -> None:
        """Build the cluster in a new folder; ``key`` is the text of its key, if it has one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.key = key
        self.now = folder / "now"
        self.original = folder / "original"
        self.now.mkdir()
        self.truth: Original = build(self.now, lambda: key)
        self._add_victims()
        self.now.rename(self.original)
        (folder / "above.txt").write_text("above")
        (folder / "scratch").mkdir()
        self.files = {path: Path(entry.path).read_bytes() for path, entry in files_below(self.original)}
        """Every file of the cluster, by its path below the cluster's folder."""
        self._outside = frozenset(self._look_outside(self.original))
        self._kept = {
            path: _seen(path, entry.stat(follow_symlinks=False)) for path, entry in files_below(self.original)
        }

    def _add_victims(self) -> None:
        victim = self.now / "victim"
        (self.now / "beside.txt").write_text("beside")
        source = next(path for path in sorted((self.now / "b1").rglob("plain-*/0.*")) if path.is_dir())
        shutil.copytree(source, victim / "0.1")
        shutil.copytree(source.parent, victim / source.parent.name)
        (victim / "deep" / "er").mkdir(parents=True)
        (victim / "deep" / "er" / "x.parquet").write_bytes(b"x" * 1000)
        (victim / ("a" * 32)).write_bytes(b"as a staged file is called")
        (victim / "00000000000000000000.0000000001.parquet").write_bytes(b"as a segment is called")
        now = (self.now / "beside.txt").stat().st_mtime
        for path in [self.now / "beside.txt", *victim.rglob("*")]:
            os.utime(path, (now - _OLD_S, now - _OLD_S))

    def fresh(self) -> None:
        """Make the copy equal to the original again."""
        clear(self.now)
        link_tree(self.original, self.now)

    def outside_changes(self, but: Collection[str]) -> list[str]:
        """The changes outside the roots, and in linked originals."""
        differences = _differences(self._outside, frozenset(self._look_outside(self.now)))
        found = [f"{one[0]} {how}" for one, how in differences if one[0] not in but]
        for path, seen in self._kept.items():
            try:
                now = _seen(path, os.lstat(self.original / path))
            except FileNotFoundError:
                now = (path, 0, 0, 0)
            if now != seen:
                found.append(f"the bytes of {path} were written in place")
        return found

    def _look_outside(self, cluster: Path) -> Iterator[Seen]:
        for entry in os.scandir(cluster):
            if entry.name in ROOTS:
                continue
            if entry.is_dir(follow_symlinks=False):
                for path, below in files_below(entry.path):
                    yield _seen(f"{entry.name}/{path}", below.stat(follow_symlinks=False))
            else:
                yield _seen(entry.name, entry.stat(follow_symlinks=False))
        for name in os.listdir(self.folder):
            if name == "above.txt":
                yield _seen(f"../{name}", (self.folder / name).lstat())
            elif name not in ("now", "original"):
                yield f"../{name}", 0, 0, 0


def _differences(before: frozenset[Seen], after: frozenset[Seen]) -> Iterator[tuple[Seen, str]]:
    gone, come = before - after, after - before
    changed = {one[0] for one in gone} & {one[0] for one in come}
    yield from ((one, "is gone") for one in sorted(gone) if one[0] not in changed)
    yield from ((one, "has come") for one in sorted(come) if one[0] not in changed)
    yield from ((one, "has changed") for one in sorted(gone) if one[0] in changed)


def _seen(path: str, now: os.stat_result) -> Seen:
    return path, now.st_ino, now.st_size, now.st_mtime_ns


def clear(folder: Path) -> None:
    """Remove a folder and its content, without following links, whatever the names are."""
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def link_tree(source: Path, target: Path) -> None:
    """Link the files of a folder into the same tree of folders."""
    pending = [(str(source), str(target))]
    while pending:
        here, there = pending.pop()
        os.mkdir(there)
        with os.scandir(here) as entries:
            for entry in entries:
                name = f"{there}/{entry.name}"
                if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
                    pending.append((entry.path, name))
                else:
                    os.link(entry.path, name)
