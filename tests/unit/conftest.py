"""Fixtures that several files of this folder use; a file's own fixture of the same name goes before."""

from __future__ import annotations

import pytest

from tests.unit.faulty_store import Faults
from tests.unit.store_kinds import open_kind, store

__all__ = ["faults", "open_kind", "store"]


@pytest.fixture
def faults() -> Faults:
    return Faults()
