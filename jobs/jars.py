"""The jars that Spark needs beyond those of pyspark, fetched once and then found on disk.

``conf/jars.xml`` pins each of them; those that must fit Spark or its Hadoop, to the pyspark that is installed.
``python -m stratalog.jobs.jars`` fetches them with the Ivy that pyspark ships; later sessions need no network. Two
sets: ``delta`` and ``s3``. Other files pin in the same way jars that are fetched only when somebody asks for them
by the file's name: ``azure`` and ``gcs``, with which Spark reads ``abfss://`` and ``gs://``, and which sessions
find from then on; ``kafka`` and ``mirror-maker``, for comparisons with Kafka and with its MirrorMaker.
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
"""The pins of what every session needs."""
CLOUDS = ("azure.xml", "gcs.xml")
"""Of what sessions take where it was fetched."""
WITH_DELTA = ("4.0", "4.1", "4.2")
"""Versions of Spark for which the pinned Delta is built."""
_FETCH_TIMEOUT_S = 900

_unpacked = ExitStack()
atexit.register(_unpacked.close)


def conf_file(name: str) -> Path:
    """The path of a file of the package ``conf``; of a copy of it where the packages lie in a zip (--py-files)."""
    return _unpacked.enter_context(
        importlib.resources.as_file(importlib.resources.files("stratalog.conf").joinpath(name))
    )


def jar_folder() -> Path:
    """Where the jars lie: ``$STRATALOG_JARS``, else ``.cache/jars`` of the checkout, else a folder of the
    user's, when the packages are installed without their checkout."""
    named = os.environ.get("STRATALOG_JARS")
    if named:
        return Path(named).absolute()
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file():
        return root / ".cache" / "jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratalog" / "jars"


def pinned_jars(pins: str = JARS) -> Sequence[Path]:
    """Every jar of a file of ``conf``, as a path below the jar folder (``delta/delta-storage-4.4.0.jar``).

    Raises: EnvironmentUnusableError when pyspark is not installed, or of a version without Delta.
    """
    versions = _versions()
    pinned = []
    for item in ElementTree.parse(conf_file(pins)).iterfind("./dependencies/dependency"):
        jar = f"{item.attrib['name']}-{item.attrib['rev']}.jar"
        for name, version in versions.items():
            jar = jar.replace(f"${{{name}}}", version)
        pinned.append(Path(item.attrib["conf"].partition("->")[0], jar))
    return pinned


def session_jars(folder: Path) -> Sequence[Path]:
    """The jars of a session: what every one needs, and the sets of ``CLOUDS`` that are there."""
    there = [pins for pins in CLOUDS if not missing_jars(folder, pins)]
    return [folder / jar for pins in (JARS, *there) for jar in pinned_jars(pins)]


def missing_jars(folder: Path, pins: str = JARS) -> Sequence[Path]:
    """Those of ``pinned_jars`` that ``folder`` lacks."""
    return [jar for jar in pinned_jars(pins) if not (folder / jar).is_file()]


def fetch_jars(folder: Path, pins: str = JARS) -> None:
    """Fetch what ``folder`` lacks; several processes may do so at once. Without network, a folder that
    is complete is enough.

    Raises: EnvironmentUnusableError when there is no Java, no pyspark, or a jar cannot be had.
    """
    if not missing_jars(folder, pins):
        return
    java = find_java(os.environ).executable
    print(f"fetching the jars of {pins} from Maven Central to {folder}, once", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        # 1. Resolve and download into a scratch folder: an interrupted fetch leaves no half a jar.
        pattern = os.path.join(scratch, "[conf]", "[artifact]-[revision].[ext]")
        command: list[str | Path] = [java, *(f"-D{name}={version}" for name, version in _versions().items())]
        command += ["-cp", _shipped_jar("ivy"), "org.apache.ivy.Main", "-warn"]
        command += ["-settings", conf_file("ivysettings.xml"), "-ivy", conf_file(pins)]
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
                f"cannot fetch the jars of {pins} from Maven Central: no end after {_FETCH_TIMEOUT_S} s"
            ) from error
        absent = missing_jars(Path(scratch), pins)
        if ivy.returncode != 0 or absent:
            lines = [line.strip() for line in (ivy.stdout + ivy.stderr).splitlines()]
            problems = [line for line in lines if "module not found" in line or "xception" in line]
            raise EnvironmentUnusableError(
                f"cannot fetch the jars of {pins} from Maven Central: "
                f"{'; '.join(problems[:3]) or f'ivy ended with {ivy.returncode}'}"
            )
        # 2. Move each into place, atomically.
        for jar in pinned_jars(pins):
            (folder / jar).parent.mkdir(exist_ok=True)
            os.replace(Path(scratch, jar), folder / jar)


def class_path(folder: Path, pins: str = JARS, of: str = "") -> str:
    """The class path of a JVM of this machine: one entry per jar, in the order of the pins; ``of`` one set (the
    first folder of its jars), or of all of them."""
    return os.pathsep.join(str(folder / jar) for jar in pinned_jars(pins) if of in ("", jar.parts[0]))


def _versions() -> Mapping[str, str]:
    """The versions that the pins of ``conf`` leave open: those of the pyspark that is installed."""
    hadoop = Path(_shipped_jar("hadoop-client-api")).stem.rpartition("-")[2]
    from pyspark.version import __version__ as spark

    minor = ".".join(spark.split(".")[:2])
    if minor not in WITH_DELTA:
        raise EnvironmentUnusableError(
            f"pyspark {spark} is installed, and Delta is there for {', '.join(WITH_DELTA)}: "
            f"pip install 'pyspark~={WITH_DELTA[-1]}.0'"
        )
    return {"spark": spark, "spark.minor": minor, "hadoop": hadoop}


def _shipped_jar(name: str) -> str:
    """The path of a jar of pyspark, by the beginning of its name."""
    pyspark = importlib.util.find_spec("pyspark")
    places = list(pyspark.submodule_search_locations or ()) if pyspark is not None else []
    for place in places:
        for jar in sorted(Path(place, "jars").glob(f"{name}-[0-9]*.jar")):
            return str(jar)
    raise EnvironmentUnusableError("pyspark is not installed here: pip install 'stratalog[spark]'")


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch missing jars of ``jars.xml``, or of the pins that are named, as in ``azure``; say where they are (exit
    code 1: the error)."""
    pins = f"{next(iter(sys.argv[1:] if argv is None else argv), 'jars')}.xml"
    if not conf_file(pins).is_file():
        print(
            f"no jars are pinned by the name {pins.removesuffix('.xml')!r}: azure, gcs, kafka or mirror-maker",
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
