"""An archive of the classes that Spark loads (the JDK's class data sharing): with it, a JVM needs half of the
processor time to start and to warm up, because Spark and Delta load some twenty thousand classes.

The first session of the tests that finds no archive for its Java and jars writes one into ``.cache`` when it ends.
A JVM with another class path, or of another version, ignores the archive.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from stratalog.jobs.jars import jar_folder, session_jars
from stratalog.jobs.java import find_java

CACHE = Path(__file__).resolve().parent.parent / ".cache"
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""The JVM would say which classes it leaves out."""


@functools.cache
def archive() -> Path:
    """The archive for the installed Java and jars, whether it exists or not."""
    java = Path(find_java(os.environ).executable).resolve()
    shipped = sorted(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    known = [(str(each), each.stat().st_mtime_ns) for each in (java, *session_jars(jar_folder()), *shipped)]
    return CACHE / f"classes-{pyspark.__version__}-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.jsa"


def archive_option() -> str:
    """Options of a JVM that uses the archive, if it exists."""
    found = archive()
    return f"-XX:SharedArchiveFile={found} {_SILENT}" if found.exists() else _SILENT


@contextmanager
def session_option(folder: Path) -> Iterator[str]:
    """Options of the JVM of this process' session. If there is no archive and no other process writes one, this
    JVM writes it: it ends when the block does.
    """
    target, new = archive(), folder / "classes.jsa"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "classes.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield archive_option()
            return
        if target.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield archive_option()
            return
        yield f"-XX:ArchiveClassesAtExit={new} {_SILENT}"
        _end_jvm()
        if new.exists():
            for old in CACHE.glob(f"classes-{pyspark.__version__}-*.jsa"):
                old.unlink()
            shutil.move(new, target.with_suffix(".new"))  # across file systems that is a copy
            target.with_suffix(".new").replace(target)


def _end_jvm() -> None:
    """End the JVM of this process and wait for it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    with suppress(BrokenPipeError):
        gateway.proc.stdin.close()
    gateway.proc.wait(timeout=300)
