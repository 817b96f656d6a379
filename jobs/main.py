"""``stratalog JOB ...``: every job under one command, as ``python -m stratalog.jobs.JOB`` runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

JOBS = (
    *("format", "topics", "append", "read", "tail", "offsets"),
    *("maintain", "replicate", "merge", "tier", "retain", "vacuum", "bootstrap", "fence", "verify"),
    *(
        "recover",
        "health",
        "metrics",
        "describe",
        "elect",
        "reassign",
        "snapshot",
        "delete_records",
        "quorum",
        "groups",
    ),
    *("transactions", "restore", "package", "check_store"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job that the first argument names with the others; returns its exit status."""
    name, *rest = [*(sys.argv[1:] if argv is None else argv), ""]
    if name in JOBS:
        return int(importlib.import_module(f"stratalog.jobs.{name}").main(rest[:-1]))  # noqa: TID251 - one of JOBS
    asked = name in ("-h", "--help")
    print(f"stratalog JOB ...; the jobs: {', '.join(JOBS)}", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
