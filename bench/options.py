"""Selects the benchmarks, from the environment: ``BYTES=200MB ONLY=scan,append python -m bench``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratalog.partitions.amounts import parse_size
from stratalog.partitions.errors import InvalidCallError

NAMES = (
    *("calls", "latency", "rates", "append", "append3", "typed", "replicate", "hot", "idle", "tier", "remote_log"),
    *("scan", "pruned"),
    *("plan", "ranges", "kafka", "mirror", "stream"),
    *("remote_reads", "bootstrap", "restore", "quorum", "metadata", "replay", "state", "growth", "costs"),
)
OWN_KAFKA = "own"
RECORD_BYTES = 1024
SMALLEST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The selected benchmarks and their sizes."""

    bytes: int
    """The bytes of the records' values, which are 1 KiB each."""
    partitions: int
    folder: Path
    """The folder that is created for the run and removed afterwards; it must not exist before."""
    only: tuple[str, ...]
    idle_partitions: int = 10_000
    restore_partitions: int = 10_000
    """The number of partitions of the largest restored cluster."""
    metadata_partitions: int = 1_000_000
    """The number of partitions of the largest image of a cluster."""
    commits: int = 100_000
    """The number of small commits to replay."""
    growth: int = 1_000
    """The largest size for measuring how the cost of operations grows."""
    kafka: str | None = None
    """``host:port`` of a broker to compare with; ``OWN_KAFKA``: a broker that the benchmark starts; None: no
    broker."""

    @property
    def records(self) -> int:
        """The number of records with that many bytes."""
        return self.bytes // RECORD_BYTES


def bench_options(environ: Mapping[str, str], default_folder: Path) -> BenchOptions:
    """The options of the environment, with defaults.

    Raises: InvalidCallError naming the variable.
    """
    size = parse_size(environ.get("BYTES") or "2GB")
    if size < SMALLEST_BYTES:
        raise InvalidCallError(f"BYTES is {size}: give at least {SMALLEST_BYTES}")

    def number(name: str, default: int, least: int, most: int) -> int:
        text = environ.get(name) or str(default)
        if not text.isdecimal() or not least <= int(text) <= most:
            raise InvalidCallError(f"{name} is {text!r}: give a number from {least} to {most}")
        return int(text)

    only = tuple(filter(None, re.split(r"[,\s]+", environ.get("ONLY") or "")))
    for name in only:
        if name not in NAMES:
            raise InvalidCallError(f"ONLY names {name!r}: give some of {', '.join(NAMES)}")
    folder = Path(environ.get("BENCH_DIR") or default_folder).absolute()
    return BenchOptions(
        bytes=size,
        partitions=number("PARTITIONS", 8, 1, 1000),
        folder=folder,
        only=only or NAMES,
        idle_partitions=number("IDLE_PARTITIONS", 10_000, 1, 100_000),
        restore_partitions=number("RESTORE_PARTITIONS", 10_000, 10, 100_000),
        metadata_partitions=number("METADATA_PARTITIONS", 1_000_000, 1000, 10_000_000),
        commits=number("COMMITS", 100_000, 100, 1_000_000),
        growth=number("GROWTH", 1_000, 20, 100_000),
        kafka=environ.get("KAFKA") or None,
    )


def size_text(size_bytes: float) -> str:
    """A size as readable text: ``1.53 GB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"
