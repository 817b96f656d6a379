"""Shared fixtures, each in its own module, and the selection of tests for a run."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.depth import DEPTH, LEFT_OUT, VARIABLE, selected

pytest_plugins = ["tests.durations", "tests.cloud_servers", "tests.s3_server", "tests.spark_session"]

collect_ignore = ["spark", "kafka"] if DEPTH == "check" else []
"""No test in these folders is quick."""

# Every run draws the same examples, whatever the load; `make check` draws fewer.
settings.register_profile("test", derandomize=True, deadline=None)
settings.register_profile("check", settings.get_profile("test"), max_examples=10)
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    if DEPTH not in LEFT_OUT:
        raise pytest.UsageError(f"${VARIABLE} is {DEPTH!r}: say {', '.join(LEFT_OUT)}")
    settings.load_profile(DEPTH)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: one worker per core in ``make check``, which is CPU-bound. The tests of ``make test`` wait a
    third of their time, for processes and timeouts: three workers for two cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if DEPTH == "check" else (3 * cores + 1) // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, which would walk over all tests repeatedly."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = selected(items)
    if len(kept) < len(items):
        names = {item.nodeid for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts of the proofs."""
    counted: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, counts in (
            report.user_properties if "slow" in report.keywords or "nightly" in report.keywords else ()
        ):
            counted.setdefault(name, Counter()).update(counts)
    for name, counts in sorted(counted.items()):
        terminalreporter.write_line(f"{name}: {', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))}")
