"""``python -m tests.prose``: words that plain English does without, in what a person reads of the product.

A sentence has a noun as its subject, so it begins with no relative pronoun. The other words of the list have a
shorter one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("engine", "partitions", "tiering", "snapshots", "jobs", "conf", "stratalog/__init__.py")
PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docs")
_BEGIN = r"(?:^\W*|[.:;!?)`]\s+|\"\"\")"
WORDS = re.compile(
    rf"\b[Ww]hoever\b|{_BEGIN}(?:Who|What is|What are)\b"
    r"|\b(?:so many|is none|are none|to be had|of late|for ever)\b"
)


def findings(paths: list[Path]) -> Iterator[str]:
    """``path:line: words`` for each place."""
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for found in WORDS.finditer(line):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0].strip()!r}: say it plainly"


def read_files() -> list[Path]:
    """The product's sources, its texts and its pages."""
    files: list[Path] = []
    for name in (*PRODUCT, *PAGES):
        place = ROOT / name
        found = [place] if place.is_file() else place.rglob("*")
        files += [path for path in found if path.suffix in {".py", ".toml", ".md"}]
    return sorted(files)


if __name__ == "__main__":
    found = list(findings(read_files()))
    print("\n".join(found))
    sys.exit(1 if found else 0)
