"""Turns: work on many things at once, a little of each, so that a budget ends it inside of one, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

W = TypeVar("W")

Over = Callable[[], bool]
"""Whether a budget is used up."""

_MORE = 4
"""By what factor more of each is done than in the turn before."""


def in_turns(
    works: Sequence[W], over: Over | None, turn: Callable[[Sequence[W], int | None], Sequence[W]]
) -> Sequence[W]:
    """Do ``turn`` until no work is left, or it is ``over``, which is asked after each turn. A turn is told the
    works and how much of each it may do at most (1, then ever more; None, all of it, where nothing can be over),
    and answers those that it has not brought to their end. Returns what is left.
    """
    left, most = works, None if over is None else 1
    while left:
        left, most = turn(left, most), most and most * _MORE
        if over is not None and over():
            break
    return left
