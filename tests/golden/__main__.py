"""``python -m tests.golden`` rewrites the texts and pages; ``--cluster`` also rewrites the golden cluster."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from stratalog.engine.config.settings import reference_toml
from tests.golden import API, CLUSTER, DOCS, FORMATS, HOLDS
from tests.golden.api import described_api
from tests.golden.cluster import build, build_signed, holdings, packed
from tests.golden.formats import described
from tests.golden.harness import REFERENCE
from tests.golden.pages import api_page, configuration_page


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="also cluster.tar.xz and cluster.txt")
    parser.add_argument(
        "--print-texts",
        action="store_true",
        help="print what api.txt and the pages should be, a JSON object by path, and write nothing",
    )
    given = parser.parse_args()
    texts = {
        REFERENCE: reference_toml(),
        API: described_api(),
        DOCS / "api.md": api_page(),
        DOCS / "configuration.md": configuration_page(),
    }
    if given.print_texts:
        json.dump({str(path): text for path, text in texts.items()}, sys.stdout)
        return 0
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        worlds = build(Path(folder)), build_signed(Path(folder))
        files = worlds[0].files() | worlds[1].files()
        FORMATS.write_text(described(files), encoding="utf-8")
        if given.cluster:
            CLUSTER.write_bytes(packed(files))
            HOLDS.write_text(holdings(worlds[0].open()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
