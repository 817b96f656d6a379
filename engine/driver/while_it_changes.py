"""Looking again at what others change meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from stratalog.partitions.errors import SourceChangedError, StratalogError

T = TypeVar("T")


def while_it_changes(look: Callable[[], T], *changed: type[StratalogError], looks: int = 5) -> T:
    """Look again while one of the errors ``changed`` (SourceChangedError where none is named) says that another
    run was at work between two calls of one look: what was listed was gone when it was to be read, or is elsewhere
    by now. So many looks at the most.

    Raises: the last of these errors when it keeps happening; what else ``look`` raises.
    """
    for _ in range(looks - 1):
        with suppress(*changed or (SourceChangedError,)):
            return look()
    return look()
