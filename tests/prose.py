"""``python -m tests.prose``: finds words in the product's texts for which plain English has better ones.

A sentence has a noun as its subject, so it begins with no relative pronoun: not "What the file holds", but "The
content of the file". The list also has other words for which a shorter one exists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = (
    *("engine", "partitions", "tiering", "snapshots", "jobs", "bridges", "conf", "demo", "bench"),
    "stratalog/__init__.py",
)
PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docs")
_BEGIN = r"(?:^\W*|[.:;!?)`]\s+|\"\"\")"
_SENTENCE = r"(?:^[ \t]*(?:# )?|[.:;!?)`]\s+|\"\"\")"
WORDS = re.compile(
    rf"\b[Ww]hoever\b|{_BEGIN}(?:Who|What\s+is|What\s+are)\b|{_SENTENCE}What\s+[a-z]"
    r"|\b(?:[Ss]o\s+many|so\s+much|none\s+of\s+ours|nobody\s+of\s+ours)\b"
    r"|\b(?:to\s+be\s+had|of\s+late|for\s+ever|in\s+vain|comes\s+to|came\s+to)\b"
    r"|\b(?:[Ff]aults\s+that\s+may\s+pass|nothing\s+left\s+to\s+do\s+makes|[Ll]et\s+a\s+topic\s+have)\b"
    r"|[:;]\s+what\s+(?:is|was|has)\s+\w+(?:\s+\w+){0,4}\s+(?:is|was|waits|fails|counts|stays|says|leaves|catches)\b"
    r"|\b(?:[Ee]rrors?|Raises:\s+\w+)\s+(?:for|when)\s+what\s+is\b|\bnobody\s+need\s+know\b|\bout\s+of\s+account\b",
    re.MULTILINE,
)

PATTERNS = re.compile(
    # a docstring that is a fragment: its subject is elsewhere
    r"\"\"\"(?:Of\s|At\s+what\b|As\s+(?:``|of\b|by\b|in\b|to\b|with\b))|\bRaises:\s+as\s+``"
    # "a row a finding" for "a row per finding"
    r"|\b(?:a|one)\s+(?:row|file|line|task|request|footer|copy)\s+an?\s+[a-z]+"
    # passives and idioms for plain verbs
    r"|\b(?:is|are|was|were|be|been)\s+told\b|\buntold\b|\bstands?\s+for\b|\bcan\s+be\s+had\b"
    r"|\b(?:puts?|putting)\s+back\b|\bhad\s+back\b|\bgo(?:es)?\s+on\s+(?:at|from|in|with)\b"
    r"|\bfolders?\s+of\s+nobody\b|\bcall\s+a\s+human\b"
)


def findings(paths: list[Path]) -> Iterator[str]:
    """``path:line: words`` for each place."""
    for path in paths:
        text = path.read_text()
        for found in (each for pattern in (WORDS, PATTERNS) for each in pattern.finditer(text)):
            number = text.count("\n", 0, found.end()) + 1
            yield f"{path.relative_to(ROOT)}:{number}: {' '.join(found[0].split())!r}: say it plainly"


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
