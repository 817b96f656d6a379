"""Suggests the known name that a caller may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from stratalog.partitions.errors import InvalidCallError


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The end of a message about an unknown name: ``; did you mean 'trips'?``, or an empty text if no known name
    has a similarity of at least ``cutoff``. A name that differs only in case is the nearest.
    """
    names = list(known)
    same = [one for one in names if one.casefold() == name.casefold()]
    near = same or difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Check that all options are known. Raises: InvalidCallError, which names the unknown option and the nearest
    known option.
    """
    names = list(dict.fromkeys(known))
    for option in given:
        if option not in names:
            hint = did_you_mean(option, names) or f"; there are {', '.join(names)}"
            raise InvalidCallError(f"unknown option {option!r}{hint}")
