"""Pack stratalog into one zip; --py-files distributes it to the executors of a Spark cluster.

  stratalog package --to stratalog.zip
  spark-submit --py-files stratalog.zip --properties-file conf/spark-defaults.conf jobs/tier.py --topics trips

The executors' Python must have the dependencies of stratalog. The same code always gives the same zip, byte for
byte.
"""

from __future__ import annotations

import argparse
import importlib.resources
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import InvalidCallError

NAME = "stratalog"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="FILE",
        type=Path,
        default=f"{NAME}.zip",
        help=f"path of the zip; an existing file is overwritten (default: ./{NAME}.zip)",
    )


def package(job: Job) -> Report:
    """Pack the zip. Raises: InvalidCallError if the zip cannot be written; an older zip then stays unchanged."""
    to: Path = job.arguments.to
    began = SystemClock().monotonic_s()
    files = dict(sorted(_files(importlib.resources.files(NAME), NAME)))
    try:
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{NAME}-") as scratch:
            with zipfile.ZipFile(Path(scratch, to.name), "w") as packed:
                # the ZipInfo has no time, so that the zip always has the same bytes
                for name, file in files.items():
                    packed.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
            os.replace(Path(scratch, to.name), to)
    except OSError as error:
        raise InvalidCallError(
            f"--to {to}: the zip cannot be written: {error.strerror}; name another file"
        ) from error
    rows: list[dict[str, Value]] = [{"zip": str(to), "files": len(files), "bytes": to.stat().st_size}]
    return Report("package", rows, seconds=SystemClock().monotonic_s() - began)


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """Yield every file of a folder, with its name in the zip. (In a checkout the folders are links.)"""
    for child in folder.iterdir():
        if child.is_dir() and child.name != "__pycache__":
            yield from _files(child, f"{name}/{child.name}")
        elif child.is_file():
            yield f"{name}/{child.name}", child


main = JobMain("package", __doc__, arguments, package, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
