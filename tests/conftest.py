"""Fixtures that several folders use; each lives in a module of its own."""

from hypothesis import settings

pytest_plugins = ["tests.s3_server", "tests.spark_session"]

# The same examples in every run, however loaded the machine is.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
