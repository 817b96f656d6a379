"""Code blocks of the README and of the documentation, for the tests that run them.

The Python blocks of a page run one after another, with shared names, in a folder with the page's TOML block as
``cluster.toml``, and with the folders that this file names.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language; the page's path is relative to the root."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def make_cluster_file(page: str, folder: Path) -> None:
    """Write the page's cluster file into a folder, and make the roots that it names there."""
    [text] = blocks(page, "toml")
    (folder / "cluster.toml").write_text(text, encoding="utf-8")
    tables = tomllib.loads(text)
    for root in (tables["cluster"]["remote"], *(broker["log_dir"] for broker in tables["brokers"])):
        (folder / root).mkdir()
