"""The figures on the pages of ``docs``, most of them on ``performance.md``: a run replaces the figures that it
measured. All other figures stay.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.table import Row, render
from stratalog.partitions.errors import InvalidCallError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
ELSEWHERE = {"costs": PAGE.with_name("costs.md"), "restore": PAGE.with_name("operations.md")}
"""The page, keyed by benchmark."""
END = "\n<!-- end -->\n"
_SETTINGS = (
    *("BYTES", "PARTITIONS", "IDLE_PARTITIONS", "RESTORE_PARTITIONS", "METADATA_PARTITIONS", "COMMITS", "GROWTH"),
    "KAFKA",
)


def of(name: str) -> Path:
    """The page that has the figures of a benchmark."""
    return ELSEWHERE.get(name, PAGE)


def begin(name: str) -> str:
    """The mark before the figures of a benchmark."""
    return f"<!-- bench {name} -->\n"


def command(name: str, environ: Mapping[str, str]) -> str:
    """The command that measures one benchmark in the same way."""
    settings = [f"{setting}={environ[setting]}" for setting in _SETTINGS if environ.get(setting)]
    return " ".join(["make bench", f"ONLY={name}", *settings])


def machine(spark: str | None) -> str:
    """The machine and the versions on which figures depend; None for figures without Spark."""
    python = platform.python_version()
    text = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {python}"
    return text if spark is None else f"{text}, Spark {spark}"


def filled(page: str, name: str, heading: str, lines: Sequence[Row]) -> str:
    """The page with the figures of one benchmark below ``heading``.

    Raises: InvalidCallError if the page has no place for them.
    """
    before, found, rest = page.partition(begin(name))
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise InvalidCallError(
            f"the page of {name} has no place for its figures: write {begin(name)!r} and {END!r} into the page"
        )
    return f"{before}{begin(name)}\n{heading}:\n\n{render(lines)}\n{END}{after}"
