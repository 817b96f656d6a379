"""Retries a read that concurrent changes disrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from stratalog.partitions.errors import SourceChangedError, StratalogError

T = TypeVar("T")


def while_it_changes(look: Callable[[], T], *changed: type[StratalogError], looks: int = 5) -> T:
    """Call ``look`` up to ``looks`` times, until it raises none of ``changed`` (default: SourceChangedError). Such
    an error means that another run deleted or moved a listed file between two calls of ``look``.

    Raises: the last of these errors if it persists; other errors from ``look``.
    """
    for _ in range(looks - 1):
        with suppress(*changed or (SourceChangedError,)):
            return look()
    return look()
