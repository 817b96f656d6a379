"""Fixtures that several folders use; each lives in a module of its own."""

pytest_plugins = ["tests.s3_server", "tests.spark_session"]
