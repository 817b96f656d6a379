"""Fixtures that several folders use; each lives in a module of its own."""

import pytest
from hypothesis import settings

pytest_plugins = ["tests.s3_server", "tests.spark_session"]

# The same examples in every run, however loaded the machine is; fewer where what is slow is left out.
settings.register_profile("all", derandomize=True, deadline=None)
settings.register_profile("quick", settings.get_profile("all"), max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "all")
