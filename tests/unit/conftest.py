"""Fixtures that several files of this folder use; a fixture of the same name in a file takes precedence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.scripted_server import server, serving
from tests.unit.store_kinds import open_kind, store

__all__ = ["faults", "open_kind", "server", "serving", "store"]


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Three brokers in memory, without a topic."""
    return LiveCluster(tmp_path)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """No test here cuts the power. The tests of ``fsync`` itself (``test_store_local``) replace it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
