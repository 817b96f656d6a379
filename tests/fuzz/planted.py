"""``python -m tests.fuzz.planted FAULT INDEXES``: mutations over an engine with a planted fault, until one of them
finds it. The verdicts are printed, one per line.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stratalog import Cluster
from stratalog.engine.driver.report import Failure, Report
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.tiering import schedule
from tests.fuzz.watch import Watch

SEED = 1
GIVEN_S = 3.0


def _decoding(fault: Callable[[bytes], Any]) -> Callable[[], None]:
    """A fault in decoding the list of due partitions."""

    def plant() -> None:
        schedule.decode = fault

    return plant


def _opening(fault: Callable[[Path], object]) -> Callable[[], None]:
    """A fault in opening a cluster, given the folder."""

    def plant() -> None:
        opened = Cluster.open.__func__  # type: ignore[attr-defined]

        def planted(cls: type[Cluster], file: Path, *args: Any, **options: Any) -> Cluster:
            fault(Path(file).parent)
            cluster: Cluster = opened(cls, file, *args, **options)
            return cluster

        Cluster.open = classmethod(planted)  # type: ignore[assignment, method-assign]

    return plant


def _telling(report: Report) -> Callable[[], None]:
    """A fault in the report of an operation."""

    def plant() -> None:
        Cluster.describe = lambda cluster, topics=None: report  # type: ignore[method-assign]

    return plant


class _Raw(Report):
    def __str__(self) -> str:
        return "quorum: \x1b[2J"


def _write_into(folder: Path) -> None:
    file = next((folder / "b1").rglob("*.claim"))
    with file.open("ab") as claim:
        claim.write(b"x")


def _believe_everybody() -> None:
    """Accept any tag as the cluster's, or none."""
    ClusterKey.check = lambda *_: None  # type: ignore[method-assign]
    ClusterKey.knows = lambda *_: True  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    "foreign": _decoding(lambda data: {}[data]),
    "death": _decoding(lambda data: ctypes.string_at(0)),
    "hang": _decoding(lambda data: time.sleep(3600)),
    "memory": _decoding(lambda data: (b"x" * (1100 << 20))[:0]),
    "beside": _opening(lambda folder: (folder / "left").write_text("here")),
    "victim": _opening(lambda folder: (folder / "victim" / ("a" * 32)).unlink(missing_ok=True)),
    "in place": _opening(_write_into),
    "lost": _opening(lambda folder: [path.unlink() for path in folder.glob("b*/*/merged-*/*/*.parquet")]),
    "in a report": _telling(Report("quorum", [], [Failure("x", "UNKNOWN_SERVER_ERROR", "KeyError: 'x'")])),
    "unescaped": _telling(_Raw("quorum", [])),
    "unsigned": _believe_everybody,
}


def main(fault: str, *indexes: str) -> None:
    """Plant the fault, and print the first finding."""
    with Watch(SEED, 1, given_s=GIVEN_S) as watch:
        FAULTS[fault]()
        for index in indexes:
            if not watch.summary.found:
                watch.run([int(index)])
        print("\n".join(sorted({found.first.verdict for found in watch.summary.found.values()})))


if __name__ == "__main__":
    main(*sys.argv[1:])
