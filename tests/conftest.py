"""Fixtures that several folders use; each lives in a module of its own."""

from collections import Counter

import pytest
from hypothesis import settings

pytest_plugins = ["tests.s3_server", "tests.spark_session"]

# The same examples in every run, however loaded the machine is; fewer where what is slow is left out.
settings.register_profile("all", derandomize=True, deadline=None)
settings.register_profile("quick", settings.get_profile("all"), max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "all")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the proofs have counted."""
    counted: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, counts in report.user_properties if "proof" in report.keywords else ():
            counted.setdefault(name, Counter()).update(counts)
    for name, counts in sorted(counted.items()):
        terminalreporter.write_line(f"{name}: {', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))}")
