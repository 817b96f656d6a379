"""A SPARK_HOME from which Python workers import PySpark's compiled modules.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on the path of its Python workers. Python compiles the
modules of an archive at each start, so each streaming query, and the first task of each kind, takes about 0.7 s
longer. In the home that this module makes, each archive is replaced by a folder of the same name, which contains a
link to the package.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from stratalog.jobs.jars import pyspark_version


def compiled_home(spark_home: Path, folder: Path) -> Path:
    """Return a home below ``folder`` for the pip-installed pyspark at ``spark_home``. It is created once; several
    processes may do so at the same time. Return ``spark_home`` itself if that is impossible, for example because
    ``folder`` is read-only or the platform has no links.
    """
    name = hashlib.sha256(os.fsencode(spark_home)).hexdigest()[:16]
    home = folder / f"home-{pyspark_version()}-{name}"
    if not home.is_dir():
        with suppress(OSError):
            _make(home, spark_home)
    return home if home.is_dir() else spark_home


def _make(home: Path, spark_home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".home-") as scratch:
        new = Path(scratch, "home")
        new.mkdir()
        for entry in spark_home.iterdir():
            if entry.name not in ("python", "__pycache__"):
                (new / entry.name).symlink_to(entry)
        for archive in spark_home.glob("python/lib/*.zip"):
            package = archive.name.split("-")[0].removesuffix(".zip")
            installed = spark_home.with_name(package)
            place = new / "python" / "lib" / archive.name
            place.mkdir(parents=True)
            (place / package).symlink_to(installed)
        new.rename(home)
