"""Processes many items in rounds, a part of each per round, so that a budget can stop in the middle of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

W = TypeVar("W")

Over = Callable[[], bool]
"""Returns whether a budget is used up."""

_MORE = 4
"""The factor by which the work per item grows in each round."""


def in_turns(
    works: Sequence[W], over: Over | None, turn: Callable[[Sequence[W], int | None], Sequence[W]]
) -> Sequence[W]:
    """Call ``turn`` until no work is left, or ``over`` returns True after a round. A round receives the items and
    the maximum amount of work for each (1 in the first round, then more; without a budget None, which means
    everything), and returns the unfinished items. Returns the items that are left.
    """
    left, most = works, None if over is None else 1
    while left:
        left, most = turn(left, most), most and most * _MORE
        if over is not None and over():
            break
    return left
