"""The origin of this process: user, machine, and the scheduler's job and run, from the environment.

``STRATALOG_JOB`` and ``STRATALOG_RUN`` take precedence, for schedulers that set no variables of their own. (A
Databricks task: ``{{job.id}}`` and ``{{job.run_id}}``.) Airflow's variables are recognized. With
``STRATALOG_HISTORY=off`` this process writes no events.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.partitions.errors import InvalidCallError

_JOBS = (("STRATALOG_JOB",), ("AIRFLOW_CTX_DAG_ID", "AIRFLOW_CTX_TASK_ID"))
_RUNS = (("STRATALOG_RUN",), ("AIRFLOW_CTX_DAG_RUN_ID", "AIRFLOW_CTX_TRY_NUMBER"))
_SWITCH = "STRATALOG_HISTORY"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an operation."""

    user: str
    host: str
    job: str | None
    run: str


@dataclass(slots=True)
class OperationsLog:
    """How a driver writes events."""

    origin: Origin
    failing: frozenset[str] = field(default_factory=frozenset)
    """The failures of the latest round of ``maintain``: later rounds with the same failures write no event."""


def origin(environ: Mapping[str, str] = os.environ) -> Origin:
    return Origin(
        _user(), socket.gethostname(), _first(environ, _JOBS), _first(environ, _RUNS) or f"{os.getpid()}"
    )


def operations_log(environ: Mapping[str, str] = os.environ) -> OperationsLog | None:
    """How this process writes events; None if it writes none. Raises: InvalidCallError."""
    switch = environ.get(_SWITCH, "on")
    if switch not in ("on", "off"):
        raise InvalidCallError(f"{_SWITCH} is {switch!r}: use 'on' or 'off'")
    return OperationsLog(origin(environ)) if switch == "on" else None


def _first(environ: Mapping[str, str], choices: tuple[tuple[str, ...], ...]) -> str | None:
    """The values of the first group whose first variable is set."""
    for names in choices:
        if environ.get(names[0]):
            return ".".join(environ[name] for name in names if environ.get(name))
    return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        return f"{os.getuid()}" if hasattr(os, "getuid") else "unknown"
