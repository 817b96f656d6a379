"""Python in a process without privileges, which file permissions restrict like any user except root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

_CAPABILITIES = (1, 2, 3)
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER."""
_PR_CAPBSET_DROP = 24
_START = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() == 0:
    for capability in {_CAPABILITIES}:
        if libc.prctl({_PR_CAPBSET_DROP}, capability, 0, 0, 0):
            sys.exit("cannot drop capabilities: " + os.strerror(ctypes.get_errno()))
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


def program(acts: str) -> str:
    """A program that opens the cluster of its first argument as ``driver``, runs the ``acts`` (entries of a dict,
    functions without arguments by name), and prints the error of each, or nothing, as JSON by name."""
    return f"""
import json, sys
from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import StratalogError
from tests.unit.harness import batch

driver = Cluster.open(sys.argv[1])

def said_by(act):
    try:
        answer = act()
    except StratalogError as error:
        return f"{{error.code}}: {{error}}"
    if isinstance(answer, Report):
        return "".join(f"{{failure}}; " for failure in answer.failures)
    return ""

acts = {{
{acts}}}
print(json.dumps({{name: said_by(act) for name, act in acts.items()}}))
"""


def run_without_privileges(program: str, arguments: Sequence[str]) -> str:
    """The output of a program. Raises: AssertionError with the output if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", _START, program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
