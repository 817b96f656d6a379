"""``python -m tests.golden`` writes api.txt and formats.txt anew; ``--cluster`` the golden cluster, too."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.golden import API, CLUSTER, FORMATS, HOLDS
from tests.golden.api import described_api
from tests.golden.cluster import build, build_signed, holdings, packed
from tests.golden.formats import described


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="also cluster.tar.xz and cluster.txt")
    parser.add_argument("--print-api", action="store_true", help="print what api.txt should be, and write nothing")
    given = parser.parse_args()
    if given.print_api:
        sys.stdout.write(described_api())
        return 0
    API.write_text(described_api(), encoding="utf-8")
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
