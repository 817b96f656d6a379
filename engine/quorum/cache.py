"""What a driver remembers of the metadata between its runs: a file in a folder of its machine.

An observer's local state (KIP-630, "Loading Snapshots"): opening a cluster reads this, and of the log only what
came later. It is believed where the cluster's log goes on from it, by offset, epoch and lineage; stale or
damaged it is ignored, and costs nothing but the reading that it would have saved. Deleting it is harmless.

One line of JSON says what it is, then one line a record as in a snapshot, then a digest of all of it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.metadata.dump import decode, dump, encode, load
from engine.quorum.contents import Note
from engine.quorum.state import LogState
from partitions.errors import CorruptionError
from partitions.lineage import Lineage
from partitions.paths import DataName

SAVE_AFTER = 50
"""A cache that spares all but so many records of the log is not written anew."""

_DIGEST_BYTES = 16


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file holds."""

    cluster_id: str
    end: int
    epoch: int
    start: int
    appended_ms: int
    lineage: tuple[tuple[int, int], ...]
    files: tuple[tuple[int, int], ...]
    """Base offset and epoch of each batch from ``start`` on."""
    version: int = 1


def cache_file(folder: Path, cluster_id: str) -> Path:
    """The file of a cluster in the folder of caches."""
    return folder / f"{cluster_id}.metadata"


def save_cache(folder: Path, cluster_id: str, state: LogState, note: Note) -> None:
    """Remember a log. Where that is not possible, ``note`` is told why."""
    header = _Header(
        cluster_id=cluster_id,
        end=state.end,
        epoch=state.epoch,
        start=state.start,
        appended_ms=state.appended_ms,
        lineage=tuple((entry.epoch, entry.start_offset) for entry in state.lineage),
        files=tuple((name.base_offset, name.epoch) for name in sorted(state.files)),
    )
    lines = chain([msgspec.json.encode(header)], map(encode, dump(state.image)))
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            temporary = Path(file.name)
            digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            for line in lines:
                digest.update(line)
                file.write(line + b"\n")
            file.write(digest.hexdigest().encode())
        os.replace(temporary, cache_file(folder, cluster_id))
    except OSError as error:
        note(f"the metadata is not remembered in {folder}: {error.strerror}")
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def load_cache(folder: Path, cluster_id: str, note: Note) -> LogState:
    """The log that was remembered; an empty one where there is none, or none that is whole."""
    path = cache_file(folder, cluster_id)
    try:
        with path.open("rb") as file:
            return _read(file, cluster_id)
    except FileNotFoundError:
        return LogState()
    except (OSError, ValueError, CorruptionError) as error:
        note(f"what was remembered of the metadata in {path} is ignored: {error}")
        return LogState()


def _read(file: BinaryIO, cluster_id: str) -> LogState:
    _check_digest(file)
    header = msgspec.json.decode(file.readline(), type=_Header)
    if header.cluster_id != cluster_id:
        raise CorruptionError(f"it is of cluster {header.cluster_id!r}")
    return LogState(
        image=load(map(decode, _lines(file)), header.end),
        lineage=Lineage(header.lineage),
        epoch=header.epoch,
        start=header.start,
        files=frozenset(DataName(base, None, epoch) for base, epoch in header.files),
        appended_ms=header.appended_ms,
    )


def _check_digest(file: BinaryIO) -> None:
    """Raises: CorruptionError; the file is at its beginning again afterwards."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for line in file:
        if not line.endswith(b"\n"):
            if line != digest.hexdigest().encode():
                break
            file.seek(0)
            return
        digest.update(line[:-1])
    raise CorruptionError("it is damaged or truncated: its digest is not what it should be")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        if line.endswith(b"\n"):
            yield line[:-1]
