"""Fixtures that several folders use; each lives in a module of its own. How much of a table of cases runs."""

from collections import Counter, defaultdict

import pytest
from hypothesis import settings

pytest_plugins = ["tests.cloud_servers", "tests.s3_server", "tests.spark_session"]

# The same examples in every run, however loaded the machine is; fewer where what is slow is left out.
settings.register_profile("all", derandomize=True, deadline=None)
settings.register_profile("quick", settings.get_profile("all"), max_examples=10)


def quick(config: pytest.Config) -> bool:
    """Whether this is ``make check``."""
    return "not slow" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if quick(config) else "all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A quick check takes the first and the last case of each table of cases; ``make test`` takes all."""
    if not quick(config):
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item.nodeid for table in cases.values() for item in (table[0], table[-1])}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the proofs have counted."""
    counted: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, counts in report.user_properties if "proof" in report.keywords else ():
            counted.setdefault(name, Counter()).update(counts)
    for name, counts in sorted(counted.items()):
        terminalreporter.write_line(f"{name}: {', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))}")
