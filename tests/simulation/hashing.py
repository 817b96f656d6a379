"""Whether runs depend on the order in which Python hashes."""

from __future__ import annotations

import os
import subprocess
import sys


def outputs_by_order_of_hashes(program: str) -> set[str]:
    """The outputs of a program in processes with different hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "4294967295")
    }
