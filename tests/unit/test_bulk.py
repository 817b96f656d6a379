"""The cycle collector pauses while very many objects are created, and resumes in every case."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stratalog.partitions.bulk import collector_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_pauses_and_continues() -> None:
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_continues_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_the_last_of_several_overlapping_pauses_ends_the_pause() -> None:
    """Two threads pause the collector, and the first to begin is the first to end."""
    first, second = collector_paused(), collector_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
