"""Expressions of many terms as shallow trees: Spark Connect's messages nest at most 100 levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column

Join = Callable[[Column, Column], Column]


def balanced(join: Join, terms: Sequence[Column]) -> Column:
    """Join the terms (at least one), in their order, by an associative ``join``."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return join(balanced(join, terms[:half]), balanced(join, terms[half:]))
