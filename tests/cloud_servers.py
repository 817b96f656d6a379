"""Emulators of Azure's and Google's storage for tests; without Node, or Go, the tests that need them are skipped.

``tests/conftest.py`` loads this module as a plugin; the fixtures ``azure_endpoint`` and ``gcs_endpoint`` provide
the single server of the session, and set its address and credentials in the environment.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from bench.cloud_servers import OTHER_SETTINGS, CloudEndpoint, running_azure, running_gcs
from stratalog.partitions.errors import EnvironmentUnusableError

__all__ = ["CloudEndpoint", "azure_endpoint", "gcs_endpoint"]


def _serving(
    package: str, running: Callable[[], AbstractContextManager[CloudEndpoint]]
) -> Iterator[CloudEndpoint]:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        try:
            server = running()
            endpoint = server.__enter__()
        except EnvironmentUnusableError as missing:
            pytest.skip(str(missing))
        try:
            for variable in OTHER_SETTINGS:
                if variable.startswith("AZURE" if endpoint.kind == "azure" else ("GOOGLE", "STORAGE")):
                    patch.delenv(variable, raising=False)
            for variable, value in endpoint.environment.items():
                patch.setenv(variable, value)
            yield endpoint
        finally:
            server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def azure_endpoint() -> Iterator[CloudEndpoint]:
    """One server for the session; its container is shared, so tests use prefixes of their own."""
    yield from _serving("adlfs", running_azure)


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[CloudEndpoint]:
    """One server for the session; its bucket is shared, so tests use prefixes of their own."""
    yield from _serving("gcsfs", running_gcs)
