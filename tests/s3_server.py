"""A real S3 server for tests: the one of ``bench.s3_server``, with its data in a temporary
folder.

``tests/conftest.py`` loads this module as a plugin; the fixture ``s3_endpoint`` provides the single server of the
session, and sets its credentials in the environment.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.s3_server import (
    HOST,
    OTHER_CREDENTIALS,
    SECRET_KEY,
    S3Endpoint,
    credentials,
    free_ports,
    running_server,
)

__all__ = ["HOST", "SECRET_KEY", "S3Endpoint", "free_ports", "s3_endpoint"]


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """One S3 server for the session; its buckets are shared, so tests use prefixes of their own."""
    with pytest.MonkeyPatch.context() as patch, running_server(tmp_path_factory.mktemp("s3")) as endpoint:
        for variable, value in credentials().items():
            patch.setenv(variable, value)
        for variable in OTHER_CREDENTIALS:
            patch.delenv(variable, raising=False)
        yield endpoint
