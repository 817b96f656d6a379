"""What to measure, from the environment: ``BYTES=200MB ONLY=scan,append python -m jobs.bench``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.sizes import parse_size
from partitions.errors import InvalidCallError

NAMES = (
    *(
        "calls",
        "append",
        "append3",
        "replicate",
        "hot",
        "idle",
        "tier",
        "remote_log",
        "scan",
        "pruned",
        "remote_reads",
        "bootstrap",
    ),
    "quorum",
)
RECORD_BYTES = 1024
SMALLEST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure, and where."""

    bytes: int
    """Of the records' values, which are 1 KiB each."""
    partitions: int
    folder: Path
    """Made for the run, and removed after it; must not be there before."""
    only: tuple[str, ...]
    idle_partitions: int = 10_000

    @property
    def records(self) -> int:
        """How many records make up the bytes."""
        return self.bytes // RECORD_BYTES


def bench_options(environ: Mapping[str, str], default_folder: Path) -> BenchOptions:
    """The options that the environment says, with defaults.

    Raises: InvalidCallError naming the variable.
    """
    size = parse_size(environ.get("BYTES") or "2GB")
    if size < SMALLEST_BYTES:
        raise InvalidCallError(f"BYTES is {size}: below {SMALLEST_BYTES} there is nothing to measure")
    partitions = environ.get("PARTITIONS") or "8"
    if not partitions.isdecimal() or not 1 <= int(partitions) <= 1000:
        raise InvalidCallError(f"PARTITIONS is {partitions!r}: a number from 1 to 1000")
    idle = environ.get("IDLE_PARTITIONS") or "10000"
    if not idle.isdecimal() or not 1 <= int(idle) <= 100_000:
        raise InvalidCallError(f"IDLE_PARTITIONS is {idle!r}: a number from 1 to 100000")
    only = tuple(filter(None, re.split(r"[,\s]+", environ.get("ONLY") or "")))
    for name in only:
        if name not in NAMES:
            raise InvalidCallError(f"ONLY names {name!r}: it takes some of {', '.join(NAMES)}")
    folder = Path(environ.get("BENCH_DIR") or default_folder).absolute()
    return BenchOptions(size, int(partitions), folder, only or NAMES, int(idle))


def size_text(size_bytes: float) -> str:
    """A size for people: ``1.53 GB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"
