"""Looking again at what others change meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from stratalog.partitions.errors import SourceChangedError, StratalogError

T = TypeVar("T")


def while_it_changes(look: Callable[[], T], *changed: type[StratalogError], looks: int = 5) -> T:
    """Look again while one of the errors ``changed`` (default: SourceChangedError) says that another run was at
    work between two calls of one look: a listed file was gone when it was to be read, or has moved. At most
    ``looks`` times.

    Raises: the last of these errors when it keeps happening; other errors of ``look``.
    """
    for _ in range(looks - 1):
        with suppress(*changed or (SourceChangedError,)):
            return look()
    return look()
