"""Baselines: the visible interfaces and formats of this product, as files. A change keeps them, or changes them
intentionally.

    api.txt         names, signatures, error codes, options of the jobs, configuration keys
    docs/api.md, docs/configuration.md, conf/reference.toml
                    pages of the documentation that are made from the code
    formats.txt     every file of a small cluster that today's code writes: name, and content byte for byte
    cluster.tar.xz  the folders of such a cluster; later code must read them, and continue with them
    cluster.txt     the records that readers get of that cluster

``python -m tests.golden`` rewrites all but the last two, ``python -m tests.golden --cluster`` all. Tests only
compare. The cluster stays unchanged when a format grows, because it represents data that users have already
stored.

``harness`` contains every import of the product. The other modules use only its public interface and its files.
"""

from __future__ import annotations

import difflib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
API, FORMATS, HOLDS = FOLDER / "api.txt", FOLDER / "formats.txt", FOLDER / "cluster.txt"
CLUSTER = FOLDER / "cluster.tar.xz"
DOCS = FOLDER.parents[1] / "docs"


def difference(golden: str, now: str, accept: str) -> str:
    """The difference, and how to accept it; empty if the two are equal."""
    lines = list(difflib.unified_diff(golden.splitlines(), now.splitlines(), "golden", "now", lineterm="", n=1))
    return "\n".join(
        [*lines, f"If this change is wanted, run `{accept}` and commit the difference."] if lines else []
    )
