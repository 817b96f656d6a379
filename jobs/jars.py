"""The jars that Spark needs in addition to pyspark's, fetched once and kept on disk.

``conf/jars.xml`` pins each jar; jars that must fit Spark or its Hadoop are pinned to the installed pyspark.
``python -m stratalog.jobs.jars`` fetches them with the Ivy that pyspark ships; later sessions need no network. The
file has two sets: ``delta`` and ``s3``. Other files of ``conf`` pin jars that are fetched only if you give the
file's name, such as ``azure``, as an argument. ``azure`` and ``gcs`` let Spark read ``abfss://`` and ``gs://``;
sessions use them once they are fetched. ``kafka`` and ``mirror-maker`` are for comparisons with Kafka and its
MirrorMaker. ``consumer-tests`` has the tests of Kafka's Java consumer.
"""

from __future__ import annotations

import atexit
import importlib.resources
import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from stratalog.jobs.java import find_java
from stratalog.partitions.errors import EnvironmentUnusableError

JARS = "jars.xml"
"""The pins of the jars that every session needs."""
CLOUDS = ("azure.xml", "gcs.xml")
"""The pins of jars that sessions use if these jars were fetched."""
DELTA = "delta"
"""The set of Delta's jars."""
WITH_DELTA = ("4.0", "4.1", "4.2")
"""Versions of Spark for which the pinned Delta is built. Sessions of other versions get no Delta jars."""
_FETCH_TIMEOUT_S = 900

_unpacked = ExitStack()
atexit.register(_unpacked.close)


def conf_file(name: str) -> Path:
    """Return the path of a file of the package ``conf``, or of a copy if the packages are in a zip
    (--py-files)."""
    return _unpacked.enter_context(
        importlib.resources.as_file(importlib.resources.files("stratalog.conf").joinpath(name))
    )


def jar_folder() -> Path:
    """Return the folder of the jars: ``$STRATALOG_JARS`` if set, otherwise ``.cache/jars`` of the checkout. If the
    packages are installed without a checkout, it is a folder in the user's cache."""
    named = os.environ.get("STRATALOG_JARS")
    if named:
        return Path(named).absolute()
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file():
        return root / ".cache" / "jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratalog" / "jars"


def pinned_jars(pins: str = JARS) -> Sequence[Path]:
    """Return every jar of a file of ``conf``, as a path below the jar folder (``delta/delta-storage-4.4.0.jar``).
    Delta's jars are left out if Delta has no build for the installed pyspark.

    Raises: EnvironmentUnusableError if pyspark is not installed.
    """
    versions, delta = _versions(), with_delta()
    pinned = []
    for item in ElementTree.parse(conf_file(pins)).iterfind("./dependencies/dependency"):
        if not delta and item.attrib["conf"].startswith(f"{DELTA}->"):
            continue
        jar = f"{item.attrib['name']}-{item.attrib['rev']}.jar"
        for name, version in versions.items():
            jar = jar.replace(f"${{{name}}}", version)
        pinned.append(Path(item.attrib["conf"].partition("->")[0], jar))
    return pinned


def with_delta() -> bool:
    """Whether the pinned Delta has a build for the pyspark that Python imports."""
    return ".".join(pyspark_version().split(".")[:2]) in WITH_DELTA


def session_jars(folder: Path) -> Sequence[Path]:
    """Return the jars of a session: the jars that every session needs, and the jars of the fetched sets of
    ``CLOUDS``."""
    there = [pins for pins in CLOUDS if not missing_jars(folder, pins)]
    return [folder / jar for pins in (JARS, *there) for jar in pinned_jars(pins)]


def missing_jars(folder: Path, pins: str = JARS) -> Sequence[Path]:
    """Return the jars of ``pinned_jars`` that ``folder`` lacks."""
    return [jar for jar in pinned_jars(pins) if not (folder / jar).is_file()]


def fetch_jars(folder: Path, pins: str = JARS) -> None:
    """Fetch the jars that ``folder`` lacks; several processes may do so at the same time. If no jar is missing, no
    network is needed.

    Raises: EnvironmentUnusableError if Java or pyspark is missing, or a jar cannot be fetched.
    """
    if not missing_jars(folder, pins):
        return
    java = find_java(os.environ).executable
    print(f"fetching the jars of {pins} from Maven Central to {folder}, once", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        # 1. Resolve and download into a scratch folder, so that an interrupted fetch leaves no partial jar.
        pattern = os.path.join(scratch, "[conf]", "[artifact]-[revision].[ext]")
        command: list[str | Path] = [java, *(f"-D{name}={version}" for name, version in _versions().items())]
        command += ["-cp", _shipped_jar("ivy"), "org.apache.ivy.Main", "-warn"]
        command += ["-settings", conf_file("ivysettings.xml"), "-ivy", conf_file(pins), "-confs"]
        command += sorted({jar.parts[0] for jar in pinned_jars(pins)})
        command += ["-cache", os.path.join(scratch, "cache"), "-retrieve", pattern]
        try:
            ivy = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentUnusableError(
                f"cannot fetch the jars of {pins} from Maven Central: Ivy was not done after {_FETCH_TIMEOUT_S} s"
            ) from error
        absent = missing_jars(Path(scratch), pins)
        if ivy.returncode != 0 or absent:
            lines = [line.strip() for line in (ivy.stdout + ivy.stderr).splitlines()]
            problems = [line for line in lines if "module not found" in line or "xception" in line]
            raise EnvironmentUnusableError(
                f"cannot fetch the jars of {pins} from Maven Central: "
                f"{'; '.join(problems[:3]) or f'Ivy exited with status {ivy.returncode}'}"
            )
        # 2. Move each jar into place, atomically.
        for jar in pinned_jars(pins):
            (folder / jar).parent.mkdir(exist_ok=True)
            os.replace(Path(scratch, jar), folder / jar)


def class_path(folder: Path, pins: str = JARS, of: str = "") -> str:
    """Return the class path of a JVM on this machine, with one entry per jar, in the order of the pins. ``of``
    limits it to one set (the first folder of its jars)."""
    return os.pathsep.join(str(folder / jar) for jar in pinned_jars(pins) if of in ("", jar.parts[0]))


def pyspark_version() -> str:
    """Return the version of the pyspark that Python imports. Raises: ImportError without pyspark."""
    from pyspark.version import __version__

    return __version__


def _versions() -> Mapping[str, str]:
    """The versions of the installed pyspark, for the pins of ``conf`` that leave the version open."""
    hadoop = Path(_shipped_jar("hadoop-client-api")).stem.rpartition("-")[2]
    spark = pyspark_version()
    return {"spark": spark, "spark.minor": ".".join(spark.split(".")[:2]), "hadoop": hadoop}


def _shipped_jar(name: str) -> str:
    """Return the path of the pyspark jar whose name begins with ``name``."""
    pyspark = importlib.util.find_spec("pyspark")
    places = list(pyspark.submodule_search_locations or ()) if pyspark is not None else []
    for place in places:
        for jar in sorted(Path(place, "jars").glob(f"{name}-[0-9]*.jar")):
            return str(jar)
    raise EnvironmentUnusableError("pyspark is not installed: pip install 'stratalog[spark]'")


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch missing jars of ``jars.xml``, or of the named pins such as ``azure``, and print their folder. On an
    error the exit code is 1."""
    pins = f"{next(iter(sys.argv[1:] if argv is None else argv), 'jars')}.xml"
    if not conf_file(pins).is_file():
        print(
            f"unknown set of jars {pins.removesuffix('.xml')!r}: give azure, consumer-tests, gcs, kafka or "
            "mirror-maker",
            file=sys.stderr,
        )
        return 1
    folder = jar_folder()
    try:
        fetch_jars(folder, pins)
    except EnvironmentUnusableError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(pinned_jars(pins))} jars: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
