"""Which folder of the repository is which package below ``stratalog``."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

PARTS = ("bridges", "conf", "engine", "jobs", "partitions", "snapshots", "tiering")
folders = {f"stratalog.{part}": part for part in PARTS}

if "editable_wheel" in sys.argv:
    if not Path("stratalog/engine").is_dir():
        raise SystemExit(
            "an editable install needs symbolic links, and stratalog/engine is not one here: "
            "run `pip install .`, or clone again with `git clone -c core.symlinks=true`"
        )
    # With one root for all packages, setuptools installs a path, which type checkers follow, and no import hook.
    folders = {"": "."}

parts = find_packages(include=[name for part in PARTS for name in (part, f"{part}.*")])
setup(packages=["stratalog", *(f"stratalog.{part}" for part in parts)], package_dir=folders)
